package runtime

/*
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static struct sigaction go_handler;

static void say(const char *text, size_t n) {
	while (n > 0) {
		ssize_t written = write(2, text, n);
		if (written <= 0) return;
		text += written;
		n -= written;
	}
}

// on_bus_error writes the name of the file that is mapped at the faulty address to standard error,
// and then calls the handler that was installed before. It only calls functions that are safe in a
// signal handler.
static void on_bus_error(int sig, siginfo_t *info, void *context) {
	int saved = errno;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	uintptr_t address = (uintptr_t)info->si_addr, number = 0, from = 0;
	char buffer[1024], path[4096];
	size_t length = 0;
	enum { FROM, TO, REST, PATH } at = FROM;
	ssize_t n;
	while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			char c = buffer[i];
			if (c == '\n') {
				if (at == PATH) {
					static const char before[] = "muster: bus error: the file ";
					static const char after[] = " was cut short, or cannot be read, while ONNX Runtime had it mapped\n";
					say(before, sizeof before - 1);
					say(path, length);
					say(after, sizeof after - 1);
				}
				at = FROM;
				number = length = 0;
			} else if (at == FROM && c == '-') {
				from = number;
				number = 0;
				at = TO;
			} else if (at == TO && c == ' ') {
				at = REST;
			} else if (at == FROM || at == TO) {
				number = number * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
			} else {
				if (at == REST && c == '/' && from <= address && address < number) at = PATH;
				if (at == PATH && length < sizeof path) path[length++] = c;
			}
		}
	}
	if (fd >= 0) close(fd);
	errno = saved;
	if (go_handler.sa_flags & SA_SIGINFO) {
		go_handler.sa_sigaction(sig, info, context);
	} else {
		sigaction(sig, &go_handler, NULL); // the fault comes again
	}
}

static int name_bus_errors(void) {
	struct sigaction action;
	if (sigaction(SIGBUS, NULL, &go_handler) != 0) return errno;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_bus_error;
	action.sa_flags = go_handler.sa_flags | SA_SIGINFO | SA_ONSTACK;
	action.sa_mask = go_handler.sa_mask;
	return sigaction(SIGBUS, &action, NULL) == 0 ? 0 : errno;
}
*/
import "C"

// nameBusErrors installs a handler for SIGBUS that names the mapped file at which a bus
// error occurs, usually one that was truncated. Go alone would only print the address. It
// must be called only once.
func nameBusErrors() { C.name_bus_errors() }

//go:build linux && cgo

package runtime

/*
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARDS = 64, PATH_SIZE = 4096 };

// A guard is of a file that is being loaded. The path is only written while the state is FILLING.
static struct guard {
	enum guard_state { FREE, FILLING, HELD, CUT } _Atomic state;
	size_t length;
	char path[PATH_SIZE];
} guards[GUARDS];

// guard_hold returns the number of a guard of the file, -1 if there is none left.
static int guard_hold(const char *path, size_t length) {
	if (length > PATH_SIZE) return -1;
	for (int i = 0; i < GUARDS; i++) {
		enum guard_state is = FREE;
		if (!atomic_compare_exchange_strong(&guards[i].state, &is, FILLING)) continue;
		memcpy(guards[i].path, path, length);
		guards[i].length = length;
		atomic_store(&guards[i].state, HELD);
		return i;
	}
	return -1;
}

// guard_free ends a guard, and returns whether the file was cut short meanwhile.
static int guard_free(int i) { return atomic_exchange(&guards[i].state, FREE) == CUT; }

static struct guard *guard_of(const char *path, size_t length) {
	for (int i = 0; i < GUARDS; i++) {
		enum guard_state is = atomic_load(&guards[i].state);
		if ((is == HELD || is == CUT) && guards[i].length == length &&
			memcmp(guards[i].path, path, length) == 0)
			return &guards[i];
	}
	return NULL;
}

static struct sigaction go_handler;

static void say(const char *text, size_t n) {
	while (n > 0) {
		ssize_t written = write(2, text, n);
		if (written <= 0) return;
		text += written;
		n -= written;
	}
}

// on_bus_error puts zeros in the place of what a file that has a guard lacks, from the faulty address
// to the end of the mapping, and notes that. For another file it writes its name to standard error,
// and then calls the handler that was installed before. It only calls functions that are safe in a
// signal handler, and mmap, which is a system call and no more.
static void on_bus_error(int sig, siginfo_t *info, void *context) {
	int saved = errno;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	uintptr_t address = (uintptr_t)info->si_addr, number = 0, from = 0;
	char buffer[1024], path[PATH_SIZE];
	size_t length = 0;
	enum { FROM, TO, REST, PATH } at = FROM;
	ssize_t n;
	while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			char c = buffer[i];
			if (c == '\n') {
				struct guard *g = at == PATH ? guard_of(path, length) : NULL;
				if (g != NULL) {
					uintptr_t page = address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
					if (mmap((void *)page, number - page, PROT_READ | PROT_WRITE,
							MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
						atomic_store(&g->state, CUT);
						close(fd);
						errno = saved;
						return;
					}
				}
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

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// nameBusErrors installs a handler for SIGBUS that names the mapped file at which a bus
// error occurs, usually one that was truncated. Go alone would only print the address. It
// must be called only once.
func nameBusErrors() { C.name_bus_errors() }

// guardFiles keeps the process alive while some files are being loaded, also if one is cut short as
// it is read from its mapping: what it lacks then reads as zeros. end must be called once the load no
// longer reads mappings; its error names the files that were cut short. They are real paths, as
// realPaths returns them, and no session in use may map them. A process can guard 64 files at a
// time; more are not guarded.
func guardFiles(files map[string]bool) (end func() error) {
	guards := map[string]C.int{}
	for path := range files {
		written := strings.ReplaceAll(path, "\n", `\012`) // as in /proc/self/maps
		at := (*C.char)(unsafe.Pointer(unsafe.StringData(written)))
		if i := C.guard_hold(at, C.size_t(len(written))); i >= 0 {
			guards[path] = i
		}
	}
	return func() error {
		var errs []error
		for path, i := range guards {
			if C.guard_free(i) != 0 {
				errs = append(errs, fmt.Errorf("%s was cut short while it was being loaded", path))
			}
		}
		return errors.Join(errs...)
	}
}

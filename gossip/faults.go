package gossip

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	// faultInterval is how long the same fault is not logged again. Chosen: six lines an hour show
	// that it lasts and hide no others.
	faultInterval = 10 * time.Minute
	// maxFaults is how many different faults are logged within faultInterval: forged packets could
	// cause any number.
	maxFaults = 64
)

// faultLog logs each fault once within faultInterval. It is also the writer of memberlist's log,
// whose lines it rewrites. Its methods may be called concurrently.
type faultLog struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time
	named map[string]int // how often each fault has occurred since then
}

func newFaultLog(log *slog.Logger) *faultLog {
	return &faultLog{log: log, named: map[string]int{}}
}

// newLogger returns a logger for memberlist that writes to f.
func (f *faultLog) newLogger() *log.Logger { return log.New(f, "", 0) }

// warn logs a fault, unless the same fault was logged within faultInterval. It counts the lines
// left out; the first fault of the next interval logs their number.
func (f *faultLog) warn(text string, args ...any) {
	f.logAs(text+fmt.Sprintln(args...), slog.LevelWarn, text, args...)
}

// logAs is warn with a level; two faults are the same if their keys are.
func (f *faultLog) logAs(key string, level slog.Level, text string, args ...any) {
	f.mu.Lock()
	left := 0
	if time.Since(f.since) > faultInterval {
		for _, n := range f.named {
			left += n - 1
		}
		f.since, f.named = time.Now(), map[string]int{}
	}
	n, full := f.named[key], len(f.named) >= maxFaults
	switch {
	case n > 0 || !full:
		f.named[key] = n + 1
	default:
		f.named[""]++ // all faults beyond maxFaults
	}
	rest := f.named[""]
	f.mu.Unlock()

	if left > 0 {
		f.log.Info("gossip: faults repeated that were not logged", "times", left)
	}
	if n == 0 && !full {
		f.log.Log(context.Background(), level, text, args...)
	} else if n == 0 && rest == 1 {
		f.log.Warn("gossip: too many different faults; others are not logged for some minutes")
	}
}

// Write implements io.Writer: it logs one line of memberlist, in this package's words if they are
// in lines.
func (f *faultLog) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	level := slog.LevelWarn
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if name, rest, ok := strings.Cut(rest, "] "); ok {
			text = rest
			switch name {
			case "DEBUG":
				level = slog.LevelDebug
			case "INFO":
				level = slog.LevelInfo
			}
		}
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	text, peer, _ := strings.Cut(text, " from=")
	key := withoutNumbers(text)
	for _, known := range lines {
		if rest, ok := strings.CutPrefix(text, known.prefix); ok &&
			strings.Contains(rest, known.has) {
			key, level = known.prefix, known.level
			if known.means != "" {
				key = known.means
				text = strings.Replace(known.means, "*", rest, 1)
			}
			break
		}
	}
	text = "gossip: " + text
	if level == slog.LevelDebug {
		f.log.Debug(text, "peer", peer)
		return len(line), nil
	}
	// The same fault from another port of the peer counts as the same.
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer = host
	}
	var args []any
	if peer != "" {
		args = []any{"peer", peer}
	}
	f.logAs(key+" "+peer, level, text, args...)
	return len(line), nil
}

// withoutNumbers returns text without its digits, which are often the only difference between two
// lines about the same fault.
func withoutNumbers(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text)
}

const (
	notOurs   = "unreadable with our keys: the sender has another key or none, or is not an agent"
	encrypted = "unreadable: the sender has a gossip key, and this agent has none"
	notAgent  = "unreadable: the sender is not an agent"
)

// lines translates log lines of memberlist; the first entry that fits applies. A line without an
// entry keeps memberlist's words and level.
var lines = []struct {
	prefix, has string
	level       slog.Level
	means       string // the new text; * stands for the text after the prefix; empty: keep the text
}{
	{"Decrypt packet failed", "", slog.LevelWarn, notOurs},
	{"failed to receive: ", "no installed keys", slog.LevelWarn, notOurs},
	{"failed to receive: ", "remote state is not encrypted", slog.LevelWarn, notOurs},
	{"failed to receive: ", "encryption is not configured", slog.LevelWarn, encrypted},
	{"failed to receive: ", "", slog.LevelWarn, notAgent},
	{"msg type (", "not supported", slog.LevelWarn, notAgent},
	{"Received invalid msgType", "", slog.LevelWarn, notAgent},
	{"Failed to decode", "", slog.LevelWarn, notAgent},
	{"Failed to decompress", "", slog.LevelWarn, notAgent},
	{"Failed to read remote state", "", slog.LevelWarn, notAgent},
	{"Failed to receive", "", slog.LevelWarn, notAgent},
	{"missing message type byte", "", slog.LevelWarn, notAgent},
	{"Compound request had", "", slog.LevelWarn, notAgent},
	{"Got invalid checksum", "", slog.LevelWarn, notAgent},
	{"Failed push/pull merge: ", "", slog.LevelWarn, "another agent cannot join: *"},
	// The code of this package logs these itself.
	{"ignoring alive message for", "", slog.LevelDebug, ""},
	{"Conflicting address for", "", slog.LevelDebug, ""},
	{"Binding to public address", "", slog.LevelDebug, ""},
	// memberlist logs these while it detects that a member has failed or restarted.
	{"Failed fallback TCP ping", "", slog.LevelDebug, ""},
	{"Failed to send", "", slog.LevelDebug, ""},
	{"Failed to forward ack", "", slog.LevelDebug, ""},
	{"Push/Pull with", "", slog.LevelDebug, ""},
	{"Got ping for unexpected node", "", slog.LevelDebug, ""},
	{"Suspect", "", slog.LevelDebug, ""},
	{"Marking", "", slog.LevelDebug, ""},
	{"Refuting", "", slog.LevelInfo,
		"taken for dead by others, and said otherwise: this agent was stopped, cut off or very " +
			"busy"},
	{"Was able to connect to ", "UDP probes failed", slog.LevelWarn,
		"answers over TCP but not UDP, which may be blocked, or a machine very busy: *"},
	{"failed to join", "", slog.LevelDebug, ""},
}

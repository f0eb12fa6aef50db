package gpu

import "fmt"

// A fault is what NVIDIA's catalogue of Xids says of one
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
type fault struct {
	meaning string
	card    bool // the card needs a reset or the machine a restart; else a new process will do
}

// fatal are the Xids after which a process cannot use the card: the card's own faults, and those of
// a program on it, whose CUDA context is dead from then on. NVML does not say whose context that
// is. A process alone on its card or slice, as an agent should be, is the one.
//
// Others only warn: that memory was repaired (63), that many errors were corrected (92), that
// another process was cleaned up after (45), or that a link between cards failed (74), which no
// agent uses. If a context is dead after one of them, its next run says so.
var fatal = map[uint64]fault{
	8:   {"the GPU stopped processing", false},
	11:  {"invalid or corrupted push buffer stream", false},
	13:  {"graphics engine exception", false},
	31:  {"memory page fault", false},
	32:  {"invalid or corrupted push buffer stream", false},
	43:  {"the GPU stopped processing", false},
	46:  {"the GPU stopped processing", true},
	48:  {"double-bit ECC error", true},
	62:  {"internal micro-controller halt", true},
	64:  {"a bad row of memory could not be remapped", true},
	69:  {"graphics engine class error", false},
	79:  {"the GPU has fallen off the bus", true},
	94:  {"contained ECC error", false},
	95:  {"uncontained ECC error", true},
	109: {"context switch timeout", true},
	110: {"security fault", true},
	119: {"GSP RPC timeout", true},
	120: {"GSP error", true},
	140: {"unrecovered ECC error", true},
}

// xidFault returns why a process cannot use the card after an Xid; nil if it can.
func xidFault(c *Card, xid uint64) error {
	f, ok := fatal[xid]
	if !ok {
		return nil
	}
	whose := "a new process may use it again"
	if f.card {
		whose = "it needs a reset"
	}
	return fmt.Errorf("%s failed: Xid %d: %s; %s", c, xid, f.meaning, whose)
}

// Package isolate keeps models that share a machine apart: which processors there are (Read), which
// lane gets which (Topology.Assign), how a thread stays on them (Pin), how threads stay off those on
// which others compute (Apart), and how the last-level cache is divided between them (Open).
//
// Pinning needs no rights. Dividing the cache needs Linux's resctrl, mounted and writable: metal
// machines of Intel and AMD have it, and virtual machines of clouds do not. Where it is missing,
// Open says why, and everything else works.
//
// The package runs no goroutine. Its functions may be called concurrently, the methods of one
// Isolator may not.
package isolate

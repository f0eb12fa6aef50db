// Package gpu finds an NVIDIA card, says why it cannot be used, and watches it.
//
// [Open] takes the driver that the machine has (libcuda.so.1 and libnvidia-ml.so.1, both opened
// while the program runs, so that one binary serves machines with and without a GPU) and chooses the
// card or the MIG slice that this process uses. [Card.Watch] then looks at it, and waits for what
// NVIDIA calls Xid events, until its context ends. Package gpu starts no goroutine.
//
// A process uses one card. A CUDA context that has met a fault is dead for its process, and CUDA
// shows a process only one MIG slice; so a machine with several cards or slices runs a process for
// each, and a fault takes one of them.
//
// Folder fakenvidia has a driver without a card, for tests. No binary contains it.
package gpu

// Package direct makes small reads and writes on TCP connections cost less CPU time.
//
// Before each system call Go tells its scheduler of it, in case the call blocks. That wakes Go's
// monitor thread if the process was idle, and the monitor may give the caller's place to another
// thread meanwhile. A process that wakes for each message of a few hundred bytes and then sleeps
// again, as agents and clients do, spends much of its time on that. But reads and writes of Go's
// sockets never block: they return at once, and Go's poller waits. So the connections of this package
// call the system without telling the scheduler. Calls for more than 64 KiB, which copy for a while,
// are made as usual.
//
// Large queries take fewer calls, because gRPC can have large read buffers: a connection has one only
// while there is something to read ([Reader]).
//
// Input and output: connections and listeners. It starts no goroutine. Other systems than Linux,
// and programs with the race detector, which learns of messages by Go's own calls, get their
// connections back as they are.
package direct

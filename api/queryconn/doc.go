// Package queryconn carries queries on connections of their own, one at a time on each, without
// HTTP/2. A query and its answer are those of a ModelInfer call.
//
// HTTP/2 costs a query several goroutines, whose threads wake each other, and a large one also a
// header for every 16 KiB and two copies. Here the goroutine that asks writes the query and reads
// the answer, the server's goroutine of the connection reads the query and runs it, and both ends
// move large tensors straight between the socket and where they belong.
//
// # The protocol
//
// With TLS a client asks for the ALPN protocol [Protocol]; without, it sends [Preface] first. Both
// ends are then silent until the client asks. Lengths have four bytes, the first the highest.
//
//	query:   length, a StreamedQuery of package control without its query,
//	         length, a ModelInferRequest
//	answer:  length, a StreamedAnswer without its answer,
//	         and, if that has no error: length, a ModelInferResponse
//
// The client waits for the answer before it asks again. It gives a query up by closing the
// connection. The server may answer before it has read all of the query, and reads on then. Either
// end may close the connection between two queries, so a client whose query fails before a byte of
// the answer has come asks again in another way.
//
// What comes in: connections. What goes out: queries and answers as package oip has them. It starts
// no goroutine.
package queryconn

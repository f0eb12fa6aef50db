// Package lateness says why queries are late. In come the components of a query's time, as its
// gateway and its worker have measured them, or how it failed; out comes one cause, and of many
// queries the sentence, the evidence and what to do. Gateways, leaders and commands share it, so
// that all name the same cause. It is pure: it reads no clock and starts no goroutine.
package lateness

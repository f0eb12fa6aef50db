// Package colocate simulates models that share a machine: runs progress more slowly while
// others run beside them.
//
// A [Machine] has the runs under way. What is left of each is known at any time, and is timed anew
// whenever a run starts or ends there. The simulator of fleets times its lanes with it. A [Node] is
// a machine with two models, their queues and workers, and a manager that moves workers and ways of
// the cache between them, as Hera has it.
package colocate

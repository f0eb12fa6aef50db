// Package lane decides what the lanes of one agent run, and when. Package runtime carries its
// actions out with real runs in real time, the simulator in virtual time.
//
// A lane runs one query at a time, or several as one ([merge.Policy]), or one on each of its cores
// ([Query.Divide]). [State.Step] takes what has happened and the time, and answers with what is to
// be done: which queries start, which are refused and why, which runs nobody waits for any more. It
// decides
//
//   - whether a query starts at once, waits or is refused as it comes;
//   - in which order those that wait run (package queue), together with which (package merge), and
//     on a whole lane or on one core;
//   - which of those that wait are refused: because they are late, or because an overload lasts and
//     they would run in vain;
//   - when a refused client is to try again, and when a lane is free.
//
// It carries nothing out: it starts no goroutine, reads no clock and holds no input of a query. The
// same events give the same actions, so what real lanes have done can be replayed.
//
// # Invariants
//
// Each query that comes either is refused at once or is admitted, and ends once: it is refused
// while it waits, or its run ends. It does not start after it was refused. Between two steps no
// query waits while a lane is idle, unless a merge policy or a group has it wait, or it needs a
// whole lane. A lane runs at most one query or one merged run, or as many queries as it has cores.
package lane

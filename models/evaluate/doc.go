// Package evaluate tells how well models answer, on labelled rows, and how long they take.
//
// The rows come from the user's file ([ReadFile]), or are drawn ([Draw]) and labelled by a teacher:
// each label is 1 with the probability that the teacher answers. So the teacher's score is the best
// that is possible, and other models of its family show what they lose. A teacher whose answers are
// no probabilities ranks rows instead.
//
// All models answer the same rows, so that differences between them are known better than the
// scores. The package runs no models itself: the caller hands in how. Runs are concurrent, on as
// many goroutines as there are processors, which end before a function returns.
package evaluate

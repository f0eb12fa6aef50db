// Package branch has the open nodes of a branch and bound over counts (Land and Doig, Econometrica
// 28, 1960).
package branch

import (
	"container/heap"
	"slices"
)

// A Node is a range of counts.
type Node struct {
	Lo, Hi []int
	Bound  float64 // no counts of the range are worth more
}

// A Frontier is the nodes still to be looked at. The zero value has none.
type Frontier struct{ nodes nodes }

// Len is the number of nodes.
func (f *Frontier) Len() int { return len(f.nodes) }

// Push adds a node.
func (f *Frontier) Push(n *Node) { heap.Push(&f.nodes, n) }

// Pop takes out the node of the highest bound. There must be one.
func (f *Frontier) Pop() *Node { return heap.Pop(&f.nodes).(*Node) }

// Split adds the two halves of n, which keep its bound: count i is at most whole, or above.
func (f *Frontier) Split(n *Node, i, whole int) {
	down := &Node{n.Lo, slices.Clone(n.Hi), n.Bound}
	down.Hi[i] = whole
	up := &Node{slices.Clone(n.Lo), n.Hi, n.Bound}
	up.Lo[i] = whole + 1
	f.Push(down)
	f.Push(up)
}

type nodes []*Node

func (n nodes) Len() int           { return len(n) }
func (n nodes) Less(i, j int) bool { return n[i].Bound > n[j].Bound }
func (n nodes) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *nodes) Push(x any)        { *n = append(*n, x.(*Node)) }
func (n *nodes) Pop() any {
	last := len(*n) - 1
	x := (*n)[last]
	*n = (*n)[:last]
	return x
}

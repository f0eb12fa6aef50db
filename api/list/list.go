// Package list has doubly linked lists whose links lie in the elements, so that joining a list and
// leaving one allocate nothing. An element has a [Node] for each list in which it may be at a time.
//
// The package is pure, and no list is safe for concurrent use.
package list

// A Node is an element's place in a [List]. The element of type T holds it, and must stay where it
// is in memory as long as it is in the list. The zero value is in no list.
type Node[T any] struct {
	previous, next *Node[T]
	element        *T // nil while the node is in no list
}

// Next is the element after this one; nil if this is the last one, or in no list.
func (n *Node[T]) Next() *T { return n.next.get() }

// InList reports whether the element is in a list.
func (n *Node[T]) InList() bool { return n.element != nil }

func (n *Node[T]) get() *T {
	if n == nil {
		return nil
	}
	return n.element
}

// A List is a list of elements of type T. The zero value is an empty list.
type List[T any] struct {
	first, last *Node[T]
	n           int
}

// Len is the number of elements.
func (l *List[T]) Len() int { return l.n }

// First is the first element, nil if there is none.
func (l *List[T]) First() *T { return l.first.get() }

// Last is the last element, nil if there is none.
func (l *List[T]) Last() *T { return l.last.get() }

// Append adds element, whose node for this list is n, at the end. Like all that add, it panics if n
// is in a list already.
func (l *List[T]) Append(element *T, n *Node[T]) { l.InsertAfter(element, n, l.last) }

// InsertAfter adds element, whose node for this list is n, after the element with the node before,
// which is in the list; at the front if before is nil.
func (l *List[T]) InsertAfter(element *T, n, before *Node[T]) {
	if n.element != nil {
		panic("list: the element is in a list already")
	}
	n.element, n.previous = element, before
	link := &l.first // to n
	if before != nil {
		link = &before.next
	}
	*link, n.next = n, *link
	back := &l.last
	if n.next != nil {
		back = &n.next.previous
	}
	*back = n
	l.n++
}

// InsertSorted adds element, whose node for this list is n, to a list that is sorted by compare,
// after those that are equal to it. It looks from the end, and so is fast for elements that belong
// near there.
func (l *List[T]) InsertSorted(element *T, n *Node[T], compare func(a, b *T) int) {
	before := l.last
	for before != nil && compare(before.element, element) > 0 {
		before = before.previous
	}
	l.InsertAfter(element, n, before)
}

// Remove takes the element with the node n, which is in this list, out of it.
func (l *List[T]) Remove(n *Node[T]) {
	if n.element == nil {
		panic("list: the element is in no list")
	}
	link, back := &l.first, &l.last
	if n.previous != nil {
		link = &n.previous.next
	}
	if n.next != nil {
		back = &n.next.previous
	}
	*link, *back = n.next, n.previous
	*n = Node[T]{}
	l.n--
}

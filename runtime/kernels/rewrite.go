package kernels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/models/onnx"
)

// domain and operator name the operator of shim.c.
const (
	domain   = "muster"
	operator = "EmbeddingBags"
)

// A Rewritten is a model in which lookups in embedding tables are operators of this package.
type Rewritten struct {
	// Model is the model file's contents. External data stays where it is, relative to the folder
	// of the file that was read. Nil if nothing fits.
	Model []byte
	// Tables is how many lookups in tables the operators compute, and Operators how many there are.
	Tables, Operators int
	// Left names the sums of rows that do not fit, each with the reason.
	Left []string

	check onnx.Model // see check.go
}

// Rewrite reads the model file at path, whose signature is s, and puts this package's operators in
// the place of lookups in tables. threads is how many threads a session of the model has. It reads
// no more of the file than s did if the model has no such lookups.
func Rewrite(path string, s *onnx.Signature, threads int) (*Rewritten, error) {
	if !s.Operators["Gather"] && !s.Operators["GatherBlockQuantized"] ||
		!s.Operators["ReduceSum"] && !s.Operators["ReduceMean"] && !s.Operators["Concat"] &&
			!s.Operators["Loop"] {
		return &Rewritten{}, nil
	}
	g, err := onnx.ReadGraph(path)
	if err != nil {
		return nil, err
	}
	return RewriteGraph(g, threads)
}

// RewriteGraph is Rewrite of a graph that was read and not changed. It changes it.
func RewriteGraph(g *onnx.Graph, threads int) (*Rewritten, error) {
	if _, ok := g.Signature.Domains[domain]; ok {
		return &Rewritten{Left: []string{"the model has operators of domain " + domain}}, nil
	}
	m := newMatcher(g)
	groups, err := m.findGroups()
	if err != nil {
		return nil, err
	}
	r := &Rewritten{Left: m.left}
	if len(groups) == 0 {
		return r, nil
	}
	for i := range groups {
		if groups[i].concat < 0 {
			groups[i].output = groups[i].bags[0].value
		} else {
			groups[i].output = g.Fresh(domain + "/" + groups[i].bags[0].value)
		}
	}
	if r.check, err = m.checkModel(groups, threads); err != nil {
		return nil, err
	}
	m.rewriteGraph(groups, threads)
	g.Import(domain, 1)
	if r.Model, err = g.Marshal(); err != nil {
		return nil, err
	}
	r.Operators = len(groups)
	for _, group := range groups {
		r.Tables += len(group.bags)
	}
	return r, nil
}

// makeNode returns the operator that computes a group.
func (g group) makeNode(threads int) onnx.Node {
	n := onnx.Node{Op: operator, Domain: domain, Name: g.output + "/" + operator,
		Outputs: []string{g.output}}
	input := func(name string) int64 {
		i := slices.Index(n.Inputs, name)
		if i < 0 {
			i = len(n.Inputs)
			n.Inputs = append(n.Inputs, name)
		}
		return int64(i)
	}
	for _, b := range g.bags {
		for _, value := range b.inputs() {
			input(value)
		}
	}
	count := len(n.Inputs)
	orNone := func(name string) int64 {
		if name == "" {
			return -1
		}
		return input(name)
	}
	flag := map[bool]int64{true: 1}
	var fields []int64
	for _, b := range g.bags {
		rows := input(b.rows)
		fields = append(fields, // in the order of enum shim_field
			input(b.source.value), int64(b.source.split), b.source.start, b.source.size,
			flag[b.source.drop], int64(b.reduce), flag[b.keep], int64(b.mode), int64(b.form), rows,
			orNone(b.scales), orNone(b.offsets), flag[b.last], flag[b.open], flag[b.zero],
			orNone(b.weights))
	}
	n.Attributes = []onnx.Attribute{
		{Name: "bags", Value: fields},
		{Name: "ids", Value: int64(count)},
		{Name: "threads", Value: int64(threads)},
	}
	return n
}

// rewriteGraph puts the groups' operators into the graph, and removes the nodes that nothing needs
// any more.
func (m *matcher) rewriteGraph(groups []group, threads int) {
	before := map[int][]onnx.Node{} // what comes before a node
	instead := map[int]onnx.Node{}
	candidates := map[string]bool{}          // values that may have become idle
	for i := range slices.Backward(groups) { // so that earlier inputs of a Concat keep their places
		g := groups[i]
		for _, b := range g.bags {
			for _, n := range b.nodes {
				for _, output := range n.Outputs {
					candidates[output] = true
				}
			}
			if at, ok := m.producers[b.ids]; ok && b.ids != b.source.value {
				for _, output := range m.graph.Nodes[at].Outputs {
					candidates[output] = true
				}
			}
		}
		if g.concat < 0 {
			instead[m.producers[g.output]] = g.makeNode(threads)
			continue
		}
		concat, ok := instead[g.concat]
		if !ok {
			old := m.graph.Nodes[g.concat]
			concat = onnx.Node{Op: old.Op, Name: old.Name, Outputs: old.Outputs,
				Attributes: old.Attributes, Inputs: slices.Clone(old.Inputs)}
		}
		concat.Inputs = slices.Replace(concat.Inputs, g.first, g.first+len(g.bags), g.output)
		instead[g.concat] = concat
		before[g.concat] = append([]onnx.Node{g.makeNode(threads)}, before[g.concat]...)
	}
	var nodes []onnx.Node
	for i, n := range m.graph.Nodes {
		nodes = append(nodes, before[i]...)
		if by, ok := instead[i]; ok {
			n = by
		}
		nodes = append(nodes, n)
	}
	m.graph.Nodes = m.withoutIdle(nodes, candidates)
}

// withoutIdle returns the nodes without those whose values are all candidates and have no use.
func (m *matcher) withoutIdle(nodes []onnx.Node, candidates map[string]bool) []onnx.Node {
	nested := make([]map[string]int, len(nodes)) // what graphs within the nodes use
	used := map[string]int{}                     // of candidates; uses as outputs of the graph stay
	for value := range candidates {
		used[value] = m.graph.Uses(value) - len(m.users[value])
	}
	for _, n := range m.graph.Nodes {
		for value, times := range n.NestedUses() {
			used[value] -= times
		}
	}
	for i, n := range nodes {
		for _, input := range n.Inputs {
			used[input]++
		}
		nested[i] = n.NestedUses()
		for value, times := range nested[i] {
			used[value] += times
		}
	}
	idle := func(n onnx.Node) bool {
		return n.Domain != domain && !slices.ContainsFunc(n.Outputs, func(output string) bool {
			return !candidates[output] || used[output] > 0
		})
	}
	var kept []onnx.Node
	for i, n := range slices.Backward(nodes) { // users come after what they use
		if idle(n) {
			for _, input := range n.Inputs {
				used[input]--
			}
			for value, times := range nested[i] {
				used[value] -= times
			}
			continue
		}
		kept = append(kept, n)
	}
	slices.Reverse(kept)
	return kept
}

// Reason returns why sums of rows stay as they are, in one line.
func (r *Rewritten) Reason() string {
	left := r.Left
	if n := len(left); n > 2 {
		left = append(slices.Clone(left[:2]), fmt.Sprintf("and %d more", n-2))
	}
	return strings.Join(left, "; ")
}

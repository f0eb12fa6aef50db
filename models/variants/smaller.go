package variants

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// lowRank replaces the weights of each layer by a near matrix of the given rank, as the product of
// two thin ones, if those are smaller.
func lowRank(g *onnx.Graph, rank int) (Report, error) {
	var nodes []onnx.Node
	var report Report
	for _, n := range g.Nodes {
		l, ok := layerOf(g, n)
		if !ok {
			nodes = append(nodes, n)
			continue
		}
		// A rank from the smaller side on always has more weights; the product could be too large.
		if rank >= min(l.in, l.out) || rank*(l.in+l.out) >= l.in*l.out {
			l.why = fmt.Sprintf("its %d x %d weights are fewer than those of rank %d", l.in, l.out,
				rank)
		}
		if l.why != "" {
			report.Left = append(report.Left, describeNode(n, l.why))
			nodes = append(nodes, n)
			continue
		}
		first, second, err := addFactors(g, l, rank)
		if err != nil {
			return Report{}, err
		}
		report.Changed++
		output := n.Outputs[0]
		thin := add(g, &nodes, "MatMul", output, []string{l.x, first})
		if l.bias != "" { // Gemm takes matrices alone, and the layer's input is one
			add(g, &nodes, "Gemm", output, []string{thin, second, l.bias})
		} else {
			add(g, &nodes, "MatMul", output, []string{thin, second})
		}
		nodes[len(nodes)-1].Outputs[0] = output
	}
	g.Nodes = nodes
	return report, nil
}

// addFactors adds the matrices [in, rank] and [rank, out] whose product is near to alpha times the
// layer's weights, and returns their names.
func addFactors(g *onnx.Graph, l layer, rank int) (first, second string, err error) {
	values, err := l.weightMatrix(g)
	if err != nil {
		return "", "", err
	}
	w := mat.NewDense(l.in, l.out, nil)
	for i, v := range values {
		w.Set(i/l.out, i%l.out, float64(v*l.alpha))
	}
	basis := dominantBasis(w, min(rank+oversampling, l.in, l.out))
	var small mat.Dense
	small.Mul(basis.T(), w)
	var svd mat.SVD
	if !svd.Factorize(&small, mat.SVDThin) {
		return "", "", fmt.Errorf("tensor %q: its singular values cannot be found", l.weight.Name)
	}
	var u, v, left, right mat.Dense
	svd.UTo(&u)
	svd.VTo(&v)
	left.Mul(basis, u.Slice(0, u.RawMatrix().Rows, 0, rank))
	right.Mul(mat.NewDiagDense(rank, svd.Values(nil)[:rank]), v.Slice(0, l.out, 0, rank).T())
	add := func(suffix string, m mat.Matrix) string {
		rows, columns := m.Dims()
		data := make([]byte, 0, 4*rows*columns)
		for r := range rows {
			for c := range columns {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(m.At(r, c))))
			}
		}
		name := g.Fresh(l.weight.Name + suffix)
		g.Add(onnx.Initializer{Name: name, DataType: tensor.FP32,
			Shape: []int64{int64(rows), int64(columns)}, Data: data})
		return name
	}
	return add("/first", &left), add("/second", &right), nil
}

const (
	// oversampling is by how many dimensions the subspace in which singular vectors are sought is
	// larger than the rank. powers is how often it is multiplied by the matrix.
	oversampling = 16
	powers       = 6
)

// dominantBasis returns an orthonormal basis of a subspace that holds almost all of the matrix w
// that n dimensions can (Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM
// Review 2011, algorithm 4.4). A whole decomposition takes 100 times as long.
func dominantBasis(w *mat.Dense, n int) *mat.Dense {
	_, out := w.Dims()
	random := rand.New(rand.NewPCG(1, 1)) // any fixed seed
	start := mat.NewDense(out, n, nil)
	for r := range out {
		for c := range n {
			start.Set(r, c, random.NormFloat64())
		}
	}
	var y mat.Dense
	y.Mul(w, start)
	basis := orthonormalBasis(&y)
	for range powers {
		var back, forth mat.Dense
		back.Mul(w.T(), basis)
		forth.Mul(w, orthonormalBasis(&back))
		basis = orthonormalBasis(&forth)
	}
	return basis
}

// orthonormalBasis returns an orthonormal basis of the space of m's columns, by the modified
// Gram-Schmidt process. It does so twice, as the first round leaves errors. (mat.QR would
// compute a square Q.)
func orthonormalBasis(m *mat.Dense) *mat.Dense {
	var columns mat.Dense
	columns.CloneFrom(m.T())
	for range 2 {
		for i := range columns.RawMatrix().Rows {
			c := columns.RawRowView(i)
			for j := range i {
				before := columns.RawRowView(j)
				floats.AddScaled(c, -floats.Dot(before, c), before)
			}
			if norm := floats.Norm(c, 2); norm > 0 {
				floats.Scale(1/norm, c)
			}
		}
	}
	return mat.DenseCopyOf(columns.T())
}

// fewerLookups uses only the first lookups of each input of ids, [N, tables, lookups].
func fewerLookups(g *onnx.Graph, numerator, denominator int64) (Report, error) {
	var nodes []onnx.Node
	var report Report
	for _, p := range g.Signature.Inputs {
		if p.DataType != tensor.Int64 && p.DataType != tensor.Int32 || len(p.Shape) != 3 ||
			p.Shape[2] < 2 {
			continue
		}
		keep := max(1, p.Shape[2]*numerator/denominator)
		constant := func(name string, v int64) string {
			name = g.Fresh("lookups/" + name)
			g.Add(onnx.Initializer{Name: name, DataType: tensor.Int64, Shape: []int64{1},
				Data: binary.LittleEndian.AppendUint64(nil, uint64(v))})
			return name
		}
		some := add(g, &nodes, "Slice", p.Name, []string{
			p.Name, constant("first", 0), constant("end", keep), constant("axis", 2),
		})
		for i := range g.Nodes {
			for j, name := range g.Nodes[i].Inputs {
				if name == p.Name {
					g.Nodes[i].SetInput(j, some)
				}
			}
		}
		report.Changed++
	}
	if report.Changed == 0 {
		return report, errors.New("the model has no input of ids with several lookups, " +
			"[-1, tables, lookups]")
	}
	g.Nodes = slices.Concat(nodes, g.Nodes)
	return report, nil
}

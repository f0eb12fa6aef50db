package clicks

import (
	"context"
	"math"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// A Size is the architecture of a member of the family.
type Size struct {
	Name string
	// Dim is the dimension of the embeddings.
	Dim int
	// Layers are the widths of the hidden layers.
	Layers []int
}

// Sizes are the family's members.
var Sizes = []Size{
	{"xs", 2, nil},
	{"s", 4, []int{8}},
	{"m", 4, []int{32}},
	{"l", 8, []int{128, 64}},
}

// A net is a model: embeddings of the ids, joined with the dense features, and layers with ReLU
// between them. Its last layer gives the logit.
type net struct {
	size   Size
	widths []int // of the joined inputs, the hidden layers and the output, 1
	// weights holds all parameters: the embeddings [features * ids, Dim], then of each layer the
	// weights [in, out] and the bias [out].
	weights []float32
	// squares are Adagrad's sums of squared gradients. An embedding has one for all its elements,
	// in the place of the first.
	squares []float32
}

const (
	learningRate = .05
	firstSquare  = 1e-4
	// miniBatch is how many rows make one step. It is worked on in pieces of a fixed size, whose
	// gradients are added in order. Chosen: eight pieces keep eight cores busy, and the result does
	// not depend on their number.
	miniBatch = 512
	piece     = 64
)

func newNet(size Size, seed uint64) *net {
	n := &net{size: size, widths: []int{features*size.Dim + dense}}
	n.widths = append(append(n.widths, size.Layers...), 1)
	total := features * ids * size.Dim
	for l := range len(n.widths) - 1 {
		total += (n.widths[l] + 1) * n.widths[l+1]
	}
	n.weights, n.squares = make([]float32, total), make([]float32, total)
	for i := range n.squares {
		n.squares[i] = firstSquare
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range n.embeddingPart(n.weights) {
		n.weights[i] = float32(.1 * random.NormFloat64())
	}
	for l := range len(n.widths) - 1 {
		w, _ := n.layerPart(n.weights, l)
		spread := math.Sqrt(2 / float64(n.widths[l]))
		for i := range w.Data {
			w.Data[i] = float32(spread * random.NormFloat64())
		}
	}
	return n
}

// embeddingPart is the part of parameters, or of what belongs to each of them, for the embeddings.
func (n *net) embeddingPart(all []float32) []float32 { return all[:features*ids*n.size.Dim] }

// layerPart is the part of parameters for layer l: weights and bias.
func (n *net) layerPart(all []float32, l int) (weights blas32.General, bias []float32) {
	at := features * ids * n.size.Dim
	for before := range l {
		at += (n.widths[before] + 1) * n.widths[before+1]
	}
	in, out := n.widths[l], n.widths[l+1]
	return blas32.General{Rows: in, Cols: out, Stride: out, Data: all[at:][:in*out]},
		all[at+in*out:][:out]
}

// A scratch holds the values of a piece of rows on their way through the net, and its gradients.
type scratch struct {
	values    []blas32.General // by layer: its inputs; the last are the logits
	errors    []blas32.General // the loss by each of them
	gradients []float32
}

func (n *net) newScratch() *scratch {
	s := &scratch{gradients: make([]float32, len(n.weights))}
	for _, w := range n.widths {
		g := func() blas32.General {
			return blas32.General{Rows: piece, Cols: w, Stride: w, Data: make([]float32, piece*w)}
		}
		s.values, s.errors = append(s.values, g()), append(s.errors, g())
	}
	return s
}

// computeLogits computes the logits of the rows [first, first+count); count is at most piece.
func (n *net) computeLogits(s *scratch, r *rows, first, count int) {
	dim := n.size.Dim
	x := s.values[0]
	for i := range count {
		row := x.Data[i*x.Stride:][:x.Stride]
		for f := range features {
			id := f*ids + int(r.ids[(first+i)*features+f])
			copy(row[f*dim:], n.weights[id*dim:][:dim])
		}
		copy(row[features*dim:], r.dense[(first+i)*dense:][:dense])
	}
	for l := range len(n.widths) - 1 {
		w, bias := n.layerPart(n.weights, l)
		in, out := s.values[l], s.values[l+1]
		in.Rows, out.Rows = count, count
		for i := range count {
			copy(out.Data[i*out.Stride:][:out.Cols], bias)
		}
		blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, in, w, 1, out)
		if l < len(n.widths)-2 {
			for i, v := range out.Data[:count*out.Stride] {
				out.Data[i] = max(v, 0)
			}
		}
	}
}

// computeGradients computes the gradients of the mean loss of a mini-batch, as far as these rows,
// which forward has seen, contribute.
func (n *net) computeGradients(s *scratch, r *rows, first, count int) {
	clear(s.gradients)
	last := len(n.widths) - 1
	for i := range count {
		p := float32(sigmoid(float64(s.values[last].Data[i])))
		if r.label[first+i] {
			p--
		}
		s.errors[last].Data[i] = p / miniBatch
	}
	for l := last - 1; l >= 0; l-- {
		w, _ := n.layerPart(n.weights, l)
		gw, gb := n.layerPart(s.gradients, l)
		in, out, back := s.values[l], s.errors[l+1], s.errors[l]
		in.Rows, out.Rows, back.Rows = count, count, count
		blas32.Gemm(blas.Trans, blas.NoTrans, 1, in, out, 0, gw)
		for i := range count {
			for o, e := range out.Data[i*out.Stride:][:out.Cols] {
				gb[o] += e
			}
		}
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, out, w, 0, back)
		if l > 0 {
			for i, v := range in.Data[:count*in.Stride] {
				if v <= 0 {
					back.Data[i] = 0
				}
			}
		}
	}
	dim := n.size.Dim
	for i := range count {
		row := s.errors[0].Data[i*s.errors[0].Stride:]
		for f := range features {
			to := s.gradients[(f*ids+int(r.ids[(first+i)*features+f]))*dim:][:dim]
			for d, e := range row[f*dim:][:dim] {
				to[d] += e
			}
		}
	}
}

// trainPass makes a pass over the rows. progress is called with the number of rows of each step.
func (n *net) trainPass(ctx context.Context, r *rows, progress func(rows int)) error {
	pieces := make([]*scratch, miniBatch/piece)
	for p := range pieces {
		pieces[p] = n.newScratch()
	}
	for first := 0; first+miniBatch <= len(r.label); first += miniBatch {
		if err := ctx.Err(); err != nil {
			return err
		}
		runParallel(len(pieces), func(p int) {
			n.computeLogits(pieces[p], r, first+p*piece, piece)
			n.computeGradients(pieces[p], r, first+p*piece, piece)
		})
		sum := pieces[0].gradients
		for _, p := range pieces[1:] {
			for i, g := range p.gradients {
				sum[i] += g
			}
		}
		n.step(sum)
		progress(miniBatch)
	}
	return nil
}

// step changes the parameters by Adagrad (Duchi et al., JMLR 2011). An embedding has one rate.
func (n *net) step(gradients []float32) {
	dim := n.size.Dim
	embeddings := len(n.embeddingPart(n.weights))
	for at := 0; at < embeddings; at += dim {
		g := gradients[at:][:dim]
		sum := float32(0)
		for _, v := range g {
			sum += v * v
		}
		if sum == 0 {
			continue // no row had this id
		}
		n.squares[at] += sum / float32(dim)
		rate := learningRate / sqrt32(n.squares[at])
		for d, v := range g {
			n.weights[at+d] -= rate * v
		}
	}
	for i := embeddings; i < len(n.weights); i++ {
		g := gradients[i]
		n.squares[i] += g * g
		n.weights[i] -= learningRate * g / sqrt32(n.squares[i])
	}
}

func sqrt32(v float32) float32 { return float32(math.Sqrt(float64(v))) }

// answerRows returns the logits of all rows.
func (n *net) answerRows(r *rows) []float32 {
	logits := make([]float32, len(r.label))
	runParallel((len(logits)+block-1)/block, func(b int) {
		s := n.newScratch()
		for first := b * block; first < min(len(logits), (b+1)*block); first += piece {
			count := min(piece, len(logits)-first)
			n.computeLogits(s, r, first, count)
			copy(logits[first:], s.values[len(s.values)-1].Data[:count])
		}
	})
	return logits
}

// runParallel calls do for 0 to n-1 on all cores, and returns when all calls have.
func runParallel(n int, do func(i int)) {
	workers := min(n, goruntime.GOMAXPROCS(0))
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	var wait sync.WaitGroup
	for range workers - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
}

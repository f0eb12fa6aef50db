package zoo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/models"
)

// A weight is a float32 tensor in the data file. Its elements are uniform in
// (mean - spread, mean + spread).
type weight struct {
	name         string
	shape        []int64
	offset       int64 // in the data file, in bytes
	key          uint64
	mean, spread float64
}

func (w weight) countElements() int64 {
	n := int64(1)
	for _, d := range w.shape {
		n *= d
	}
	return n
}

// alignment of tensors in the data file, in bytes: a page, as the ONNX specification recommends for
// files that are mapped.
const alignment = 4096

// chunk is how many elements are generated at a time.
const chunk = 256 << 10

// write writes the model's folder.
func (p *plan) write(ctx context.Context, folder string, progress func(done, total int64)) error {
	version := filepath.Join(folder, strconv.Itoa(1))
	if err := os.MkdirAll(version, 0o755); err != nil {
		return err
	}
	if err := p.writeData(ctx, filepath.Join(version, dataFile), progress); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(version, models.ModelFile), p.model.Marshal(),
		0o644); err != nil {
		return err
	}
	config, err := p.config.YAML()
	if err != nil {
		return err
	}
	head := "# Written by muster. Change what you like; it is read again when it changes.\n"
	return os.WriteFile(filepath.Join(folder, models.ConfigFile), append([]byte(head), config...),
		0o644)
}

// writeData generates the weights in chunks on all cores and writes them to path.
func (p *plan) writeData(ctx context.Context, path string,
	progress func(done, total int64)) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if err := f.Truncate(p.size); err != nil {
		return err
	}
	var total int64
	for _, w := range p.weights {
		total += 4 * w.countElements()
	}
	var mu sync.Mutex
	var done int64
	advance := func(n int) {
		if progress == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		done += int64(n)
		progress(done, total)
	}

	type piece struct {
		weight       weight
		first, count int64
	}
	pieces := make(chan piece)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pieces)
		for _, w := range p.weights {
			n := w.countElements()
			for first := int64(0); first < n; first += chunk {
				select {
				case pieces <- piece{w, first, min(chunk, n-first)}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return nil
	})
	for range goruntime.GOMAXPROCS(0) {
		g.Go(func() error {
			buf := make([]byte, 0, 4*chunk)
			for c := range pieces {
				buf = c.weight.appendElements(buf[:0], c.first, c.count)
				if _, err := f.WriteAt(buf, c.weight.offset+4*c.first); err != nil {
					return err
				}
				advance(len(buf))
			}
			return nil
		})
	}
	return g.Wait()
}

// appendElements appends the elements [first, first+count) to b; first is even. An element depends
// only on the key and on its index. All operations are on integers, conversions, or single float32
// operations, so that all machines round alike.
func (w weight) appendElements(b []byte, first, count int64) []byte {
	mean, step := float32(w.mean), float32(w.spread/(1<<24))
	element := func(bits uint64) uint32 { // of 24 bits
		odd := int32(bits)<<1 + 1 - 1<<24 // symmetric around 0, exact as a float32
		return math.Float32bits(mean + float32(float32(odd)*step))
	}
	for i := first; i < first+count; i += 2 {
		bits := mixBits(w.key + uint64(i/2)*0x9e3779b97f4a7c15)
		b = binary.LittleEndian.AppendUint32(b, element(bits>>40))
		if i+1 < first+count {
			b = binary.LittleEndian.AppendUint32(b, element(bits>>16&(1<<24-1)))
		}
	}
	return b
}

// mixBits is the output function of SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014).
func mixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// weightKey returns the seed of a tensor's random numbers.
func weightKey(model, tensor string, seed uint64) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", model, tensor, seed))
	return binary.LittleEndian.Uint64(sum[:])
}

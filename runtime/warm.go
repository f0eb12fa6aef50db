package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// Warm makes a loaded model ready to serve: it brings the files of the
// version's folder into memory and runs queries of the batch sizes that
// the version's configuration gives, with random inputs (within the ID bounds).
// So that what is being served is not disturbed, it reads in pieces with pauses
// between them and runs as background work of the lanes; where rows are
// independent, in small pieces with pauses, too, until the batch size or 20 ms
// of execution is reached.
func Warm(ctx context.Context, l *Lanes, m Model, v *models.Version) error {
	if err := warm(ctx, l, m, v); err != nil {
		return fmt.Errorf("warm %s: %w", v.Path, err)
	}
	return nil
}

const (
	// warmPiece is about how long a piece of a warm-up run keeps a lane.
	warmPiece = 250 * time.Microsecond
	// readPiece is how many bytes are read at once: some 150 us from the page cache.
	readPiece = 4 << 20
	// warmPause is how many times as long as a piece the pause after it is.
	warmPause = 9
	// warmEnough is how much execution is enough for a batch size. A thousand
	// random lookups touch all of a table; a thousand more change nothing.
	warmEnough = 20 * time.Millisecond
)

func warm(ctx context.Context, l *Lanes, m Model, v *models.Version) error {
	if err := readFolder(ctx, filepath.Dir(v.Path)); err != nil {
		return err
	}
	if err := populate(ctx, filepath.Dir(v.Path)); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(uint64(v.Number), 0)) // any fixed seed
	var speed line
	for _, batch := range v.Config.WarmUp {
		var spent time.Duration
		for rest := batch; rest > 0 && spent < warmEnough; {
			n := rest
			if v.Config.RowsIndependent {
				n = min(n, max(1, speed.within(warmPiece)))
			}
			inputs, err := randomInputs(r, v, n)
			if err != nil {
				return err
			}
			result, err := l.Do(ctx, Query{Model: m, Inputs: inputs, BatchSize: n, Background: true})
			if err != nil {
				return fmt.Errorf("run batch size %d: %w", n, err)
			}
			result.Release()
			speed.observe(n, result.Execution)
			spent += result.Execution
			rest -= n
			if err := pause(ctx, warmPause*result.Execution); err != nil {
				return err
			}
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func randomInputs(r *rand.Rand, v *models.Version, batch int) ([]tensor.Tensor, error) {
	var inputs []tensor.Tensor
	for _, p := range v.Inputs {
		in, err := zeros(p, batch)
		if err != nil {
			return nil, fmt.Errorf("input %w", err)
		}
		fill(r, p, &in)
		inputs = append(inputs, in)
	}
	return inputs, nil
}

// fill puts random values into t: integers within the port's ID bounds (0 where
// it has none), floats in [0, 1).
func fill(r *rand.Rand, p models.Port, t *tensor.Tensor) {
	size := t.DataType.Size()
	if size == 0 {
		return
	}
	// Consecutive elements that share a position of the second dimension.
	run := 1
	if len(t.Shape) > 2 {
		for _, d := range t.Shape[2:] {
			run *= int(d)
		}
	}
	for i := 0; i < len(t.Data)/size; i++ {
		to := t.Data[i*size:]
		switch t.DataType {
		case tensor.FP32:
			binary.LittleEndian.PutUint32(to, math.Float32bits(r.Float32()))
			continue
		case tensor.FP64:
			binary.LittleEndian.PutUint64(to, math.Float64bits(r.Float64()))
			continue
		case tensor.FP16, tensor.BF16:
			continue
		}
		if len(p.IDBounds) == 0 {
			continue
		}
		bound := p.IDBounds[(i/run)%len(p.IDBounds)]
		if bits := 8*size - 1; bits < 63 {
			bound = min(bound, 1<<bits)
		}
		var id [8]byte
		binary.LittleEndian.PutUint64(id[:], uint64(r.Int64N(max(bound, 1))))
		copy(to[:size], id[:])
	}
}

// readFolder brings every file of a folder into the page cache, so that later
// accesses find it there.
func readFolder(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // emulated models need no files
	}
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		f, _, err := onnx.OpenFile(path)
		if err != nil {
			continue // a folder, or a link to nothing: loading would have failed if it mattered
		}
		err = readFile(ctx, f, null)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// readFile sends a file nowhere: the kernel reads it without copying it, in
// long calls that keep no processor from other goroutines.
//
// A reader of the lowest priority is no better: between two calls its thread
// holds one of Go's processors, and while the kernel prefers other threads the
// goroutines that wait for that processor do so, too, for up to 10 ms.
func readFile(ctx context.Context, f, null *os.File) error {
	for {
		start := time.Now()
		n, err := unix.Sendfile(int(null.Fd()), int(f.Fd()), nil, readPiece)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("sendfile "+f.Name(), err)
		}
		if n == 0 {
			return nil
		}
		// What took long was waiting for a disk, which disturbs nobody.
		if err := pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
			return err
		}
	}
}

// populate enters the pages of a folder's mapped files, external data that is,
// into the page table. Otherwise the first query would, one fault at a time, which
// for thousands of lookups takes 10 ms that others wait for. Where it cannot be done,
// as before Linux 5.14, the first query does.
func populate(ctx context.Context, dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil // emulated models need no files
	}
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		// address perms offset dev inode path
		slash := strings.IndexByte(line, '/')
		if slash < 0 || filepath.Dir(strings.TrimSuffix(line[slash:], "\n")) != dir {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("/proc/self/maps: %q: %w", line, err)
		}
		for ; from < to; from += readPiece {
			start := time.Now()
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, min(readPiece, to-from), unix.MADV_POPULATE_READ); errno != 0 {
				return nil
			}
			if err := pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
				return err
			}
		}
	}
	return nil
}

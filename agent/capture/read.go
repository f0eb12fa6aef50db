package capture

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/models/store"
)

// maxSpan is by how much the queries of a file arrive after the first. Chosen: a minute, and what a
// store may be away.
const maxSpan = time.Hour

// errStopped ends the reading of a file of which no more is wanted.
var errStopped = errors.New("stopped")

// Read calls each with the queries that arrived from since on, of all files in a bucket, in order of
// arrival, until it returns an error, which Read then returns. Files that are not of captures are
// passed over. It holds in memory one query of each file whose times overlap.
func Read(ctx context.Context, b store.Bucket, since time.Time,
	each func(querytrace.TracedQuery) error) error {
	names, err := listFiles(ctx, b, since)
	if err != nil {
		return err
	}
	var m merged
	defer func() {
		for _, f := range m {
			f.stop()
		}
	}()
	for len(names) > 0 || len(m) > 0 {
		// Times in a record are rounded to less than a microsecond.
		if len(m) == 0 || len(names) > 0 && names[0].first.Sub(epoch) <= m[0].head.At+time.Microsecond {
			f, err := openFile(ctx, b, names[0].name)
			if err != nil {
				return err
			}
			names = names[1:]
			if f != nil {
				heap.Push(&m, f)
			}
			continue
		}
		f := m[0]
		if !epoch.Add(f.head.At).Before(since) {
			if err := each(f.head); err != nil {
				return err
			}
		}
		if ok, err := f.advance(); err != nil {
			return err
		} else if ok {
			heap.Fix(&m, 0)
		} else {
			heap.Pop(&m)
		}
	}
	return nil
}

type fileName struct {
	name  string
	first time.Time
}

// listFiles lists the files that may have queries from since on, by the arrival of the first.
func listFiles(ctx context.Context, b store.Bucket, since time.Time) (found []fileName, err error) {
	from := since.Add(-maxSpan)
	err = b.List(ctx, prefix, func(key string, _ int64) error {
		text, _, _ := strings.Cut(path.Base(key), "-")
		first, err := time.Parse("20060102T150405.000000000Z", text)
		if err == nil && strings.HasSuffix(key, Suffix) && !first.Before(from) {
			found = append(found, fileName{key, first})
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	slices.SortFunc(found, func(a, b fileName) int {
		return cmp.Or(a.first.Compare(b.first), strings.Compare(a.name, b.name))
	})
	return found, err
}

// A source is an open file, of which head is the next query.
type source struct {
	head querytrace.TracedQuery
	next func() (querytrace.TracedQuery, error, bool)
	stop func()
}

// openFile opens a file; nil if it has no query.
func openFile(ctx context.Context, b store.Bucket, name string) (*source, error) {
	body, _, err := b.Open(ctx, name, 0, -1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := &source{}
	f.next, f.stop = iter.Pull2(func(yield func(querytrace.TracedQuery, error) bool) {
		defer body.Close()
		err := querytrace.Read(name, body, func(q querytrace.TracedQuery) error {
			if !yield(q, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(querytrace.TracedQuery{}, err)
		}
	})
	if ok, err := f.advance(); err != nil || !ok {
		f.stop()
		return nil, err
	}
	return f, nil
}

// advance reads the next query; false at the end.
func (f *source) advance() (bool, error) {
	q, err, ok := f.next()
	f.head = q
	return ok, err
}

// merged is a heap of files by their next query.
type merged []*source

func (m merged) Len() int           { return len(m) }
func (m merged) Less(i, j int) bool { return m[i].head.At < m[j].head.At }
func (m merged) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *merged) Push(x any)        { *m = append(*m, x.(*source)) }
func (m *merged) Pop() any {
	last := len(*m) - 1
	f := (*m)[last]
	*m = (*m)[:last]
	return f
}

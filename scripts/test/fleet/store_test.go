//go:build fleet

package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/test/harness"
)

var megabytes = flag.Int64("megabytes", 0,
	"size of all models in TestStore (default 1000, with -short 24)")

// testStore has twenty emulated agents, which follow a model store of 1 GB on an S3 server of this
// process. All of them start at once, with nothing on their disks, and fetch half of it. The other
// half are new versions that come one after another, each under a load for DIEN; the same load
// follows alone. Wanted: every agent holds all, with the right bytes; no query fails; the store
// sends at most three copies, at the start too; while versions come, the p99 of DIEN is at most 1.2
// times as long (medians of five turns). Every agent has the whole, so that this needs 22 GB of
// disk; -megabytes takes less. The short form has six agents and 24 MB, and wants only that all
// agents hold what was pushed, and that no query fails.
func (r *run) testStore(ctx context.Context) error {
	agents := cmp.Or(*agentCount, pick(r, 20, 6))
	all := cmp.Or(*megabytes, pick(r, int64(1000), 24))
	if err := r.roomFor((int64(agents) + 2) * all * 1e6); err != nil {
		return err
	}
	turns := pick(r, 5, 1)
	s, err := r.newObjects()
	if err != nil {
		return err
	}
	f := &harness.Fleet{
		Muster: r.muster, Dir: r.dir, Models: []string{"dien", "mtwnd", "rm2", "wnd"},
		Args: append(harness.Emulated(), "--model-store", s.url, "--model-store-poll", "15s"),
	}
	r.atEnd = append(r.atEnd, f.Stop)
	if err := f.GenerateSmall(ctx); err != nil {
		return err
	}
	first := all * 1e6 / 2
	for _, model := range f.Models {
		if err := r.pushVersion(ctx, s, model, 1, first/int64(len(f.Models))); err != nil {
			return err
		}
	}

	begin := time.Now()
	agentsTook := &harness.Processes{What: "agents"}
	for i := range agents {
		kind := "r5n.large"
		if i < agents/5 {
			kind = "g4dn.xlarge"
		}
		dir := filepath.Join(r.dir, fmt.Sprintf("models-%d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		n, err := f.Add(ctx, kind, "--model-dir", dir)
		if err != nil {
			return err
		}
		agentsTook.PIDs = append(agentsTook.PIDs, n.PID())
	}
	if err := r.waitForVersion(ctx, f, f.Models, 1); err != nil {
		return err
	}
	started := time.Since(begin)
	for _, model := range f.Models {
		if err := r.verify(f, s, model, 1); err != nil {
			return err
		}
	}
	r.printLine("%d agents started at once and fetched %d MB each in %.0f s", agents, first/1e6,
		started.Seconds())
	cost := func(bytes int64, cpu time.Duration) float64 {
		return cpu.Seconds() * 1e9 / float64(bytes) / float64(agents)
	}
	cpu, err := agentsTook.CPUTime()
	if err != nil {
		return err
	}
	r.printLine("  %.1f CPU s for each GB that an agent fetched, its start included", cost(first,
		cpu))
	copies := float64(s.sent.Load()) / float64(first)
	r.wantQuiet(copies <= 3, "a cold start: %.2f copies from the store, want at most 3", copies)
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}

	d, err := r.newDriver(ctx, f, f.Addresses())
	if err != nil {
		return err
	}
	limit, err := harness.FluidLimit(ctx, r.muster, harness.Pool(f.Types()),
		map[string]float64{"dien": 1})
	if err != nil {
		return err
	}
	load := harness.Load{Rate: min(limit/2, pick(r, 200., 40.)), Duration: 2 * time.Second}
	if _, err := d.Run(ctx, load); err != nil { // opens connections, and lets buffers grow
		return err
	}
	second := (all*1e6 - first) / int64(turns)
	var alone, beside []float64
	begin = time.Now()
	for turn := range turns {
		if err := r.pushVersion(ctx, s, "wnd", int64(turn)+2, second); err != nil {
			return err
		}
		load.Seed, load.Duration = r.seed+uint64(turn), 0
		var busy, quiet *bench.Report
		began := time.Now()
		come, err := harness.CPUTimesDuring([]*harness.Processes{agentsTook}, func() error {
			if err := d.Start(ctx, load); err != nil {
				return err
			}
			// One is told, and tells the others. It waits for what it fetches, for a while.
			_, _ = harness.Output(ctx, "", r.muster, "models", "load", "wnd", "--server",
				f.Nodes[0].GRPC)
			if err := r.waitForVersion(ctx, f, []string{"wnd"}, int64(turn)+2); err != nil {
				return err
			}
			busy, err = d.StopAndReport()
			return err
		})
		if err != nil {
			return err
		}
		passed := time.Since(began)
		if err := r.verify(f, s, "wnd", int64(turn)+2); err != nil {
			return err
		}
		// until the old version is unloaded
		if err := r.waitAWhile(ctx, 5*time.Second); err != nil {
			return err
		}
		load.Duration = passed
		stay, err := harness.CPUTimesDuring([]*harness.Processes{agentsTook}, func() error {
			quiet, err = d.Run(ctx, load) // the same queries
			return err
		})
		if err != nil {
			return err
		}
		a, b := quiet.Models[0], busy.Models[0]
		alone, beside = append(alone, a.LatencyMS.P99), append(beside, b.LatencyMS.P99)
		r.printLine("  %d MB in %.1f s: p99 of dien %.1f ms alone, %.1f ms beside; within QoS %.2f %% "+
			"and %.2f %%; %.1f CPU s more for each GB of an agent", second/1e6,
			passed.Seconds(),
			a.LatencyMS.P99, b.LatencyMS.P99, 100*a.QoSSatisfaction, 100*b.QoSSatisfaction,
			cost(second, come[0]-stay[0]))
	}
	peers, fromStore, err := r.receivedBytes(ctx, f)
	if err != nil {
		return err
	}
	sent := float64(s.sent.Load())
	copies = sent / 1e6 / float64(all)
	r.printLine("  the store sent %.0f MB; the agents received %.0f MB of it and %.0f MB of each other",
		sent/1e6, fromStore/1e6, peers/1e6)
	r.wantQuiet(copies <= 3, "%.2f copies of %d MB from the store, want at most 3", copies, all)
	ratio := harness.Median(beside) / harness.Median(alone)
	r.wantQuiet(ratio <= 1.2,
		"p99 of %.1f ms alone and %.1f ms while versions come: %.2f times, want at most 1.2",
		harness.Median(alone), harness.Median(beside), ratio)
	return r.endLoad(d, begin)
}

// roomFor returns a skip if the disk lacks room.
func (r *run) roomFor(bytes int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(r.dir, &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < bytes {
		return skip{fmt.Errorf(
			"%.1f GB of disk are needed and %.1f GB free; -megabytes takes less",
			float64(bytes)/1e9, float64(free)/1e9)}
	}
	return nil
}

// pushVersion pushes a version of one of the fleet's models, with weights of size bytes beside what
// the emulated agents read.
func (r *run) pushVersion(ctx context.Context, s *objects, model string, version,
	size int64) error {
	folder := filepath.Join(r.dir, "models", model)
	dir := filepath.Join(folder, fmt.Sprint(version))
	if version > 1 {
		if err := os.Rename(filepath.Join(folder, fmt.Sprint(version-1)), dir); err != nil {
			return err
		}
	}
	random := rand.NewChaCha8([32]byte{byte(r.seed), byte(version)})
	_, _ = random.Read(make([]byte, model[0])) // other weights for each model
	w, err := os.Create(filepath.Join(dir, "weights"))
	if err != nil {
		return err
	}
	hash := sha256.New()
	_, err = io.CopyN(io.MultiWriter(w, hash), random, size)
	s.pushed[fmt.Sprintf("%s/%d/weights", model, version)] = [sha256.Size]byte(hash.Sum(nil))
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	_, err = harness.Output(ctx, "", r.muster, "models", "push", folder, "--store",
		"file://"+s.dir+"/models")
	return errors.Join(err, os.Remove(w.Name()))
}

// verify returns an error unless an agent, or in a short run each, has the weights that were
// pushed.
func (r *run) verify(f *harness.Fleet, s *objects, model string, version int64) error {
	name := fmt.Sprintf("%s/%d/weights", model, version)
	nodes := pick(r, f.Nodes[version%int64(len(f.Nodes)):][:1], f.Nodes)
	for _, n := range nodes {
		w, err := os.Open(filepath.Join(r.dir, fmt.Sprintf("models-%d", n.Index), name))
		if err != nil {
			return err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, w)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
		if [sha256.Size]byte(hash.Sum(nil)) != s.pushed[name] {
			return fmt.Errorf("%v has other bytes in %s than were pushed", n, name)
		}
	}
	return nil
}

// waitForVersion waits until every agent has a version of the models. If nothing comes for minutes,
// that is an error.
func (r *run) waitForVersion(ctx context.Context, f *harness.Fleet, models []string,
	version int64) error {
	last, grown, asked := float64(-1), time.Now(), time.Now()
	for {
		lacks := ""
		for _, n := range f.Nodes {
			if n.HasExited() {
				return fmt.Errorf("%v has ended", n)
			}
			dir := filepath.Join(r.dir, fmt.Sprintf("models-%d", n.Index))
			for _, model := range models {
				if _, err := os.Stat(filepath.Join(dir, model, fmt.Sprint(version),
					"weights")); err != nil {
					lacks = fmt.Sprintf("%v has no version %d of %s", n, version, model)
				}
			}
		}
		if lacks == "" {
			return nil
		}
		if time.Since(asked) > 20*time.Second { // seldom, for it takes CPU time
			asked = time.Now()
			if peers, store, err := r.receivedBytes(ctx, f); err == nil && peers+store > last {
				last, grown = peers+store, time.Now()
			}
		}
		if time.Since(grown) > pick(r, time.Minute, 3*time.Minute) {
			return fmt.Errorf("%s, and nothing has come for %v", lacks, time.Since(grown))
		}
		if err := harness.Settle(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// receivedBytes is how many bytes the agents say that they have received.
func (r *run) receivedBytes(ctx context.Context, f *harness.Fleet) (peers, store float64,
	err error) {
	for _, n := range f.Nodes {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Metrics+"/metrics",
			nil)
		if err != nil {
			return 0, 0, err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, 0, err
		}
		text, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(text)) {
			var to *float64
			switch {
			case strings.HasPrefix(line, `muster_store_received_bytes_total{source="peer"} `):
				to = &peers
			case strings.HasPrefix(line, `muster_store_received_bytes_total{source="store"} `):
				to = &store
			default:
				continue
			}
			var n float64
			if _, err := fmt.Sscan(strings.Fields(line)[1], &n); err != nil {
				return 0, 0, err
			}
			*to += n
		}
	}
	return peers, store, nil
}

// objects answers as S3 does what a model store is asked for by those who read it, of the folders
// in dir, which are its buckets.
type objects struct {
	dir    string
	url    string
	sent   atomic.Int64 // bytes of models' files
	pushed map[string][sha256.Size]byte
}

// newObjects starts a server with one bucket. It ends with the scenario.
func (r *run) newObjects() (*objects, error) {
	s := &objects{
		dir: filepath.Join(r.dir, "objects"), pushed: map[string][sha256.Size]byte{},
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "models"), 0o755); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(l) }()
	r.atEnd = append(r.atEnd, func() { _ = server.Close() })
	s.url = fmt.Sprintf(
		"s3://models?endpoint=http://%s&use_path_style=true&region=none&anonymous=true",
		l.Addr())
	return s, nil
}

func (s *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := filepath.FromSlash(strings.Trim(r.URL.Path, "/"))
	switch {
	case r.Method != http.MethodGet || !filepath.IsLocal(path):
		http.Error(w, "not for readers", http.StatusMethodNotAllowed)
	case r.URL.Query().Get("list-type") == "2":
		s.list(w, path, r.URL.Query().Get("prefix"))
	default:
		file, err := os.Open(filepath.Join(s.dir, path))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		defer file.Close()
		c := &countingBucket{ResponseWriter: w}
		http.ServeContent(c, r, "", time.Time{}, file)
		if strings.Contains(path, "blobs/") {
			s.sent.Add(c.n)
		}
	}
}

// list answers with one page of all keys.
func (s *objects) list(w http.ResponseWriter, bucket, prefix string) {
	type object struct {
		Key          string
		Size         int64
		LastModified time.Time
	}
	page := struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []object
	}{}
	root := filepath.Join(s.dir, bucket)
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			return nil
		}
		key, _ := filepath.Rel(root, path)
		if info, err := e.Info(); err == nil && strings.HasPrefix(key, prefix) {
			page.Contents = append(page.Contents, object{key, info.Size(), info.ModTime().UTC()})
		}
		return nil
	})
	slices.SortFunc(page.Contents, func(a, b object) int { return strings.Compare(a.Key, b.Key) })
	_ = xml.NewEncoder(w).Encode(page)
}

// countingBucket counts what is sent. io.Copy uses its ReadFrom, with which the kernel copies.
type countingBucket struct {
	http.ResponseWriter
	n int64
}

func (c *countingBucket) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

func (c *countingBucket) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.n += n
	return n, err
}

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-serve/muster/agent/capture"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/store"
)

// Bounds of the key of hashes. Below the first a key can be guessed; the last is that of a file which
// is no key.
const minCaptureKey, maxCaptureKey = 16, 4096

// OpenBucket gives the agent the function that opens the bucket of Config.Capture; see OpenStore. It
// must be called before Run.
func (a *Agent) OpenBucket(open func(ctx context.Context, url string) (store.Bucket, error)) {
	a.openBucket = open
}

// openCaptures opens what keeps queries, if Config.Capture says so.
func (a *Agent) openCaptures() error {
	metrics := capture.NewMetrics(a.metrics.registry)
	if a.config.Capture == "" {
		return nil
	}
	key, err := readCaptureKey(a.config.CaptureKeyFile)
	if err != nil {
		return fmt.Errorf("capture-key: %w", err)
	}
	sink := capture.Folder(a.config.Capture, a.config.CaptureBytes)
	if strings.Contains(a.config.Capture, "://") {
		if a.openBucket == nil {
			return errors.New("capture: this program cannot open buckets")
		}
		url, _, _ := strings.Cut(a.config.Capture, "?") // parameters are no name
		sink = capture.Bucket(func(ctx context.Context) (store.Bucket, error) {
			return a.openBucket(ctx, a.config.Capture)
		}, url, a.config.CaptureBytes, time.Now)
	}
	a.captures = capture.New(capture.Config{
		Sink: sink, Agent: string(a.name), Key: key, Metrics: metrics, Log: a.log,
	})
	return nil
}

// readCaptureKey reads the key in a file, without the white space around it; nil without a file.
func readCaptureKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	key, err := files.Read(path, maxCaptureKey)
	if err != nil {
		return nil, err
	}
	if key = bytes.TrimSpace(key); len(key) < minCaptureKey {
		return nil, fmt.Errorf("%s has %d bytes, expected at least %d random ones, such as those of "+
			"`openssl rand -hex 32`", path, len(key), minCaptureKey)
	}
	return key, nil
}

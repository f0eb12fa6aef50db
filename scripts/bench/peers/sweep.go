package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// sweepSpinning prints how ONNX Runtime's settings for waiting threads change a run.
func (r *run) sweepSpinning(ctx context.Context) error {
	r.only = []string{"FastAPI"} // whose Python it needs
	if _, err := r.prepareServers(ctx); err != nil {
		return err
	}
	cases, err := r.makeQueries("all")
	if err != nil {
		return err
	}
	folder, err := filepath.Abs(filepath.Join(r.dir, "all"))
	if err != nil {
		return err
	}
	seconds := float64(r.rounds) * 10 * r.time.Seconds()
	args := r.pythonCommand("fastapi", "sweep.py", strconv.FormatFloat(seconds, 'g', -1, 64))
	for _, q := range cases {
		args = append(args, r.queryPath(q))
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), r.serverEnvironment(server{spin: "0"}, folder)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

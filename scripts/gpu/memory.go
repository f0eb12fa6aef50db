package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/muster-serve/muster/scripts/harness"
)

// memory has another process take the card's memory. Wanted: the models that are loaded answer on, one
// more cannot be loaded, the error says why, and it can when the memory is back.
func (r *run) memory(ctx context.Context) error {
	repository, err := r.unhurried("")
	if err != nil {
		return err
	}
	agent, c, err := r.start(ctx, repository)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Stop() }()
	defer c.Close()
	status := func() error {
		out, err := harness.Output(ctx, "", r.muster, "status", "--server", agent.GRPC)
		fmt.Println(out)
		return err
	}
	if err := errors.Join(status(), c.UnloadModel(ctx, "rm2")); err != nil {
		return err
	}

	hog := exec.CommandContext(ctx, "python3", "scripts/gpu/hog.py")
	hog.Stderr, hog.SysProcAttr = os.Stderr, harness.ChildAttributes()
	stdin, err := hog.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := hog.StdoutPipe()
	if err != nil {
		return err
	}
	if err := hog.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("hog.py: %w", err)
	}
	fmt.Print("another process: ", line)
	failure := c.LoadModel(ctx, "rm2")
	fmt.Println("load rm2:", failure)
	var failed []error
	if failure == nil {
		failed = append(failed, errors.New("rm2 was loaded without memory"))
	}
	for _, model := range []string{"wnd", "dien"} {
		q, err := queryOf(repository, model, 1000)
		if err != nil {
			return err
		}
		us, qps, err := closed(ctx, c, q, 4, 5*r.time)
		fmt.Printf("%s meanwhile: %d answers of batch size 1000, %.0f/s, error: %v\n", model, len(us),
			qps, err)
		failed = append(failed, err)
	}
	failed = append(failed, stdin.Close(), hog.Wait())
	again := c.LoadModel(ctx, "rm2")
	fmt.Println("load rm2 when the memory is back:", again)
	r.results["memory"] = fmt.Sprint(failure)
	return errors.Join(append(failed, again)...)
}

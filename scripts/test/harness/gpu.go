package harness

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

//go:embed hog.py
var hog string

// OccupyCardMemory has a process of Python take all memory of the first card but for some MiB. It
// returns what that process says of it, and a function that gives the memory back. The thread that
// calls must last as long.
func OccupyCardMemory(ctx context.Context, leftMiB int) (said string, empty func() error,
	err error) {
	process := exec.CommandContext(ctx, "python3", "-c", hog, strconv.Itoa(leftMiB))
	process.Stderr, process.SysProcAttr = os.Stderr, ChildAttributes()
	stdin, err := process.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := process.Start(); err != nil {
		return "", nil, err
	}
	empty = func() error { return errors.Join(stdin.Close(), process.Wait()) }
	if said, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return "", nil, errors.Join(fmt.Errorf("take the card's memory: %w", err), empty())
	}
	return said, empty, nil
}

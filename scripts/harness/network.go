package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// A Network is a network namespace for each of some agents, on a bridge of this
// one, which should be one of its own ([Unshare]). Agents can be cut off: onto
// another bridge, where they see each other.
type Network struct {
	prefix string
	made   [][]string // how to remove what was made, in order
}

// unshared is set in the environment of a command that runs in a network
// namespace of its own.
const unshared = "NETWORK_UNSHARED_FOR_MUSTER"

// Unshare runs this command again where the machine's own network is out of
// reach, and returns there. It returns an error where that cannot be.
func Unshare() error {
	if os.Getenv(unshared) != "" {
		return nil
	}
	for _, tool := range []string{"unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("network namespaces: %w", err)
		}
	}
	// What may unshare may not be allowed to name what it makes.
	n := Network{prefix: fmt.Sprintf("mt%d", os.Getpid()%10000)}
	for _, try := range []string{
		"unshare --net true", "ip netns add " + n.Namespace(0), "ip netns del " + n.Namespace(0),
	} {
		words := strings.Fields(try)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("network namespaces: %s: %w: %s", try, err, bytes.TrimSpace(out))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	tool, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	args := append([]string{"unshare", "--net", self}, os.Args[1:]...)
	err = syscall.Exec(tool, args, append(os.Environ(), unshared+"=1"))
	return fmt.Errorf("network namespaces: %w", err)
}

// NewNetwork makes the namespaces.
func NewNetwork(agents int) (n *Network, err error) {
	n = &Network{prefix: fmt.Sprintf("mt%d", os.Getpid()%10000)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Remove())
		}
	}()
	steps := []string{"link set lo up"}
	for _, cut := range []bool{false, true} {
		bridge := n.bridge(cut)
		if err := n.do([]string{"link", "del", bridge}, "link", "add", bridge, "type",
			"bridge"); err != nil {
			return nil, err
		}
		steps = append(steps, "link set "+bridge+" up")
	}
	steps = append(steps, "addr add 10.213.0.1/24 dev "+n.bridge(false))
	for i := range agents {
		ns, veth := n.Namespace(i), n.veth(i)
		if err := n.do([]string{"netns", "del", ns}, "netns", "add", ns); err != nil {
			return nil, err
		}
		steps = append(steps,
			"link add "+veth+" type veth peer name eth0 netns "+ns,
			"link set "+veth+" master "+n.bridge(false)+" up",
			"-n "+ns+" addr add "+n.Host(i)+"/24 dev eth0",
			"-n "+ns+" link set eth0 up",
			"-n "+ns+" link set lo up",
		)
	}
	for _, step := range steps {
		if err := n.do(nil, strings.Fields(step)...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Namespace is that of agent i.
func (n *Network) Namespace(i int) string { return fmt.Sprintf("%s-%d", n.prefix, i) }

// Host is the address of agent i; this process has the first of the network.
func (n *Network) Host(i int) string { return fmt.Sprintf("10.213.0.%d", i+2) }

func (n *Network) veth(i int) string { return fmt.Sprintf("%sv%d", n.prefix, i) }

func (n *Network) bridge(cut bool) string {
	if cut {
		return n.prefix + "b1"
	}
	return n.prefix + "b0"
}

// Cut has agents reach nobody but those that are cut off, too.
func (n *Network) Cut(agents ...int) error { return n.move(true, agents) }

// Heal undoes Cut.
func (n *Network) Heal(agents ...int) error { return n.move(false, agents) }

func (n *Network) move(cut bool, agents []int) error {
	for _, i := range agents {
		if err := n.do(nil, "link", "set", n.veth(i), "master", n.bridge(cut)); err != nil {
			return err
		}
	}
	return nil
}

// do runs ip with args, and remembers how to undo it.
func (n *Network) do(undo []string, args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	if undo != nil {
		n.made = append(n.made, undo)
	}
	return nil
}

// Remove removes what was made.
func (n *Network) Remove() (err error) {
	for i := len(n.made) - 1; i >= 0; i-- {
		if out, e := exec.Command("ip", n.made[i]...).CombinedOutput(); e != nil {
			err = errors.Join(err,
				fmt.Errorf("ip %s: %w: %s", strings.Join(n.made[i], " "), e, out))
		}
	}
	return err
}

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

// A Network is a network namespace for each agent of a fleet. A bridge connects them with each
// other and with this process, which should have a network namespace of its own, too ([Unshare]).
// Agents that are cut off are moved to a second bridge, where they reach only each other.
type Network struct {
	prefix string
	made   [][]string // arguments of ip that undo what was made, in the order of making
}

// unshared is the environment variable that Unshare sets for the command that it runs again.
const unshared = "NETWORK_UNSHARED_FOR_MUSTER"

// Unshare starts this command anew in a network namespace of its own, in place of this process.
// There it returns nil. It returns an error if that is not possible; it needs root.
func Unshare() error {
	if os.Getenv(unshared) != "" {
		return nil
	}
	for _, tool := range []string{"unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("network namespaces: %w", err)
		}
	}
	// Who may make a namespace may still not be allowed to give it a name, so try both.
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

// NewNetwork makes the namespaces and the bridges. Remove removes them.
func NewNetwork(agents int) (n *Network, err error) {
	n = &Network{prefix: fmt.Sprintf("mt%d", os.Getpid()%10000)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Remove())
		}
	}()
	steps := []string{"link set lo up"}
	for _, cut := range []bool{false, true} {
		bridge := n.bridgeName(cut)
		if err := n.do([]string{"link", "del", bridge}, "link", "add", bridge, "type",
			"bridge"); err != nil {
			return nil, err
		}
		steps = append(steps, "link set "+bridge+" up")
	}
	steps = append(steps, "addr add 10.213.0.1/24 dev "+n.bridgeName(false))
	for i := range agents {
		ns, veth := n.Namespace(i), n.vethName(i)
		if err := n.do([]string{"netns", "del", ns}, "netns", "add", ns); err != nil {
			return nil, err
		}
		steps = append(steps,
			"link add "+veth+" type veth peer name eth0 netns "+ns,
			"link set "+veth+" master "+n.bridgeName(false)+" up",
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

// Namespace is the name of agent i's namespace.
func (n *Network) Namespace(i int) string { return fmt.Sprintf("%s-%d", n.prefix, i) }

// Host is the IP address of agent i. This process has 10.213.0.1.
func (n *Network) Host(i int) string { return fmt.Sprintf("10.213.0.%d", i+2) }

func (n *Network) vethName(i int) string { return fmt.Sprintf("%sv%d", n.prefix, i) }

func (n *Network) bridgeName(cut bool) string {
	if cut {
		return n.prefix + "b1"
	}
	return n.prefix + "b0"
}

// Cut moves agents to the second bridge: from now on they reach only each other.
func (n *Network) Cut(agents ...int) error { return n.moveAgents(true, agents) }

// Heal moves agents back to the first bridge.
func (n *Network) Heal(agents ...int) error { return n.moveAgents(false, agents) }

func (n *Network) moveAgents(cut bool, agents []int) error {
	for _, i := range agents {
		if err := n.do(nil, "link", "set", n.vethName(i), "master", n.bridgeName(cut)); err != nil {
			return err
		}
	}
	return nil
}

// do runs ip with args. undo, if there is one, are the arguments of ip by which Remove undoes that.
func (n *Network) do(undo []string, args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	if undo != nil {
		n.made = append(n.made, undo)
	}
	return nil
}

// Remove removes the namespaces and the bridges.
func (n *Network) Remove() (err error) {
	for i := len(n.made) - 1; i >= 0; i-- {
		if out, e := exec.Command("ip", n.made[i]...).CombinedOutput(); e != nil {
			err = errors.Join(err,
				fmt.Errorf("ip %s: %w: %s", strings.Join(n.made[i], " "), e, out))
		}
	}
	return err
}

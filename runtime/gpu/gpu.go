//go:build linux && cgo

package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// handles are what NVML knows a card by.
type handles struct {
	device nvml.Device
	// parent is the card of a slice, else device; instance is the slice's number on it, or whole.
	parent   nvml.Device
	instance uint32
}

// whole as the instance says that a card is no slice; NVML's events say so too.
const whole = ^uint32(0)

// management is NVML, initialized once in a process and then for its life.
var management struct {
	sync.Mutex
	api nvml.Interface
}

// openNVML returns NVML. The error wraps ErrNoDriver if the machine does not have it.
func openNVML() (nvml.Interface, error) {
	management.Lock()
	defer management.Unlock()
	if management.api != nil {
		return management.api, nil
	}
	api := nvml.New(nvml.WithLibraryPath(libnvml))
	switch ret := api.Init(); {
	case ret == nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s not found", ErrNoDriver, libnvml)
	case ret != nvml.SUCCESS:
		return nil, fmt.Errorf("NVIDIA driver cannot start: NVML: %w", ret)
	}
	management.api = api
	return api, nil
}

// CUDA_VISIBLE_DEVICES says which GPUs CUDA shows a process.
const visible = "CUDA_VISIBLE_DEVICES"

// Open chooses this process's card: by its place in the machine ("1"), by its UUID or enough of its
// beginning ("GPU-1a2b"), or by the UUID of a MIG slice, and "" is the first one of
// CUDA_VISIBLE_DEVICES or, if that is not set, of the machine. If it is set to nothing, it hides
// all.
//
// If major > 0, Open also readies CUDA for a library that was built for that major version: it
// checks that the driver can run it, and has CUDA show this process the card alone. It must then be
// called before that library is loaded. The error says what is missing, as a reason for running on
// the CPU.
func Open(spec string, major int) (*Card, error) {
	var cuda *driver
	if major > 0 {
		var err error
		if cuda, err = openDriver(); err != nil {
			return nil, err
		}
	}
	api, err := openNVML()
	version := ""
	if err == nil {
		version, _ = api.SystemGetDriverVersion() // only for messages
	}
	if cuda != nil {
		if err := cuda.checkVersion(major, version); err != nil {
			return nil, err
		}
	}
	var card *Card
	devices, set := os.LookupEnv(visible)
	first := firstOf(devices)
	switch {
	case err == nil && spec == "" && set && first == "":
		return nil, fmt.Errorf("%s is empty, which hides all GPUs from this process", visible)
	case err == nil:
		if card, err = chooseCard(api, cmp.Or(spec, first), version); err != nil {
			return nil, err
		}
	case cuda == nil, spec != "": // without NVML nothing is known of the cards
		return nil, err
	default: // as in a container that was given compute alone
		card = &Card{Unwatched: err}
	}
	if cuda == nil {
		return card, nil
	}
	if card.UUID != "" {
		if err := os.Setenv(visible, card.UUID); err != nil {
			return nil, err
		}
	}
	return card, cuda.initCUDA(version)
}

// firstOf is the first device of a list as CUDA_VISIBLE_DEVICES has it.
func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(first)
}

// chooseCard returns the card that spec names.
func chooseCard(api nvml.Interface, spec, version string) (*Card, error) {
	cards, err := list(api)
	if err != nil {
		return nil, err
	}
	if len(cards) == 0 {
		return nil, noGPU(version)
	}
	named := cards[:1]
	if spec != "" {
		named = slices.DeleteFunc(slices.Clone(cards), func(c *Card) bool {
			return !isNamed(c.UUID, spec) &&
				!(c.instance == whole && spec == strconv.Itoa(c.Index))
		})
	}
	if len(named) != 1 {
		all := make([]string, len(cards))
		for i, c := range cards {
			all[i] = c.String()
		}
		there := "there are: " + strings.Join(all, ", ")
		if len(named) > 1 {
			return nil, fmt.Errorf("%q is the beginning of several GPUs' UUIDs; %s", spec, there)
		}
		return nil, fmt.Errorf("no GPU %q; %s%s", spec, there, splitHint(cards, spec))
	}
	card := named[0]
	card.Driver, card.Others = version, len(cards)-1
	return card, nil
}

// isNamed reports whether spec is a UUID or, as CUDA allows for cards, the beginning of one.
func isNamed(uuid, spec string) bool {
	return uuid == spec || strings.HasPrefix(spec, "GPU-") && strings.HasPrefix(uuid, spec)
}

// splitHint says that the card that spec names is split, if it is.
func splitHint(cards []*Card, spec string) string {
	for _, c := range cards {
		parent, _ := c.parent.GetUUID()
		if c.instance != whole && (spec == strconv.Itoa(c.Index) || isNamed(parent, spec)) {
			return fmt.Sprintf("; GPU %d is split by MIG, so name one of its slices", c.Index)
		}
	}
	return ""
}

// list returns all cards and slices, in the order of the machine. A card that is split by MIG is
// not among them: CUDA gives its slices only. A card that does not answer is left out.
func list(api nvml.Interface) ([]*Card, error) {
	n, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count the GPUs: NVML: %w", ret)
	}
	var all []*Card
	for i := range n {
		device, ret := api.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if mode, _, ret := device.GetMigMode(); ret != nvml.SUCCESS ||
			mode != nvml.DEVICE_MIG_ENABLE {
			if c := newCard(device, device, i); c != nil {
				all = append(all, c)
			}
			continue
		}
		most, _ := device.GetMaxMigDeviceCount() // 0 after an error
		for j := range most {
			slice, ret := device.GetMigDeviceHandleByIndex(j)
			if ret != nvml.SUCCESS {
				continue // no device has that number
			}
			c := newCard(slice, device, i)
			instance, ret := slice.GetGpuInstanceId()
			if c == nil || ret != nvml.SUCCESS {
				continue
			}
			c.instance = uint32(instance)
			all = append(all, c)
		}
	}
	return all, nil
}

// newCard describes a card or a slice; nil if it does not answer.
func newCard(device, parent nvml.Device, index int) *Card {
	c := &Card{Index: index, handles: handles{device: device, parent: parent, instance: whole}}
	var ret nvml.Return
	if c.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		return nil
	}
	if c.Name, ret = device.GetName(); ret != nvml.SUCCESS {
		c.Name = "unknown"
	}
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		c.Memory = memory.Total
	}
	return c
}

// errUnwatched is of a card about which nobody can be asked.
var errUnwatched = errors.New("the card cannot be watched")

// Free returns how many bytes of the card's memory nobody uses.
func (c *Card) Free() (uint64, error) {
	if c.Unwatched != nil {
		return 0, errUnwatched
	}
	memory, ret := c.device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, fmt.Errorf("memory of %s: NVML: %w", c, ret)
	}
	return memory.Free, nil
}

package profiles

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/muster-serve/muster/api/names"
)

// A Key identifies a latency profile: a version of a model on one kind of lane.
type Key struct {
	Model string `json:"model"`
	// Version is the model's version; 0 in a profile for all versions.
	Version int64 `json:"version,omitempty"`
	// Checksum is a hash of the version's files and of the settings that affect its latency. It is
	// "" in a profile for all files, or written before checksums were kept.
	Checksum     string       `json:"checksum,omitempty"`
	InstanceType InstanceType `json:"instance_type"`
	// Provider is the execution provider, "cpu" or "cuda".
	Provider string `json:"provider"`
	// Cores is the number of cores of the lane; 0 means the whole machine.
	Cores int `json:"cores,omitempty"`
	// Beside names the models that other lanes of the machine run, as [KeyOf] writes them; "" if
	// the machine has no other models.
	Beside string `json:"beside,omitempty"`
}

func (k Key) String() string {
	s := fmt.Sprintf("%s on %s (%s", k.Model, k.InstanceType, k.Provider)
	if k.Version != 0 {
		s += fmt.Sprintf(", version %d", k.Version)
	}
	if k.Checksum != "" {
		s += fmt.Sprintf(", files %.8s", k.Checksum)
	}
	if k.Cores != 0 {
		s += fmt.Sprintf(", %d cores", k.Cores)
	}
	if k.Beside != "" {
		s += ", beside " + k.Beside
	}
	return s + ")"
}

// Compare orders keys by model, instance type, provider, cores, neighbours, version and checksum.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Model, o.Model), cmp.Compare(k.InstanceType, o.InstanceType),
		cmp.Compare(k.Provider, o.Provider),
		cmp.Compare(k.Cores, o.Cores), cmp.Compare(k.Beside, o.Beside),
		cmp.Compare(k.Version, o.Version),
		cmp.Compare(k.Checksum, o.Checksum))
}

// A LaneDescription describes where a model runs, as far as its key depends on that.
type LaneDescription struct {
	InstanceType InstanceType
	Provider     string
	// Emulated is whether the agent emulates its instance type; the machine it runs on is another.
	Emulated bool
	// Lanes is the number of lanes of the machine, Cores the number of cores of each.
	Lanes, Cores int
	// Beside are the models that other lanes of the machine run and this one does not.
	Beside []string
	// Ways of the last-level cache are the lane's and those of its models alone; 0: it shares all.
	Ways int
}

// KeyOf returns the key of the profile of a version of a model on a lane. All keys are made here,
// so that those who learn profiles and those who look them up use the same ones.
//
// The only lane of a machine counts as the whole machine (Cores is 0), as in the shipped profiles,
// if the catalogue has the machine's type and the lane has all its CPUs, runs on a GPU, or is
// emulated. An emulated lane has the provider of its type.
func KeyOf(c *Catalogue, model string, version int64, checksum string, on LaneDescription) Key {
	k := Key{
		Model: model, Version: version, Checksum: checksum,
		InstanceType: on.InstanceType, Provider: on.Provider, Cores: on.Cores,
		Beside: strings.Join(names.Neighbours(on.Beside), "+"),
	}
	if k.Beside != "" && on.Ways > 0 {
		k.Beside += fmt.Sprintf("/%dw", on.Ways)
	}
	known, ok := c.byType[on.InstanceType]
	if !ok {
		return k
	}
	if on.Emulated {
		k.Provider = known.Provider()
	}
	if on.Lanes == 1 && (on.Emulated || k.Provider == "cuda" || known.VCPUs == on.Cores) {
		k.Cores = 0
	}
	return k
}

// withoutChecksum returns the key without its checksum.
func (k Key) withoutChecksum() Key {
	k.Checksum = ""
	return k
}

// withoutNeighbours returns the key of the same lane without neighbours.
func (k Key) withoutNeighbours() Key {
	k.Beside = ""
	return k
}

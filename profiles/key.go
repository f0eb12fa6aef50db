package profiles

import "fmt"

// A Key names what one latency profile is about.
type Key struct {
	Model string `json:"model"`
	// Version is the model's version; 0 in a profile that holds for any.
	Version int64 `json:"version,omitempty"`
	// Checksum is that of the version's files and of the settings that change how long they run;
	// "" in a profile that holds for any, or of before checksums were kept.
	Checksum     string       `json:"checksum,omitempty"`
	InstanceType InstanceType `json:"instance_type"`
	// Provider is the execution provider, "cpu" or "cuda".
	Provider string `json:"provider"`
	// Cores of the lane; 0 is the whole machine.
	Cores int `json:"cores,omitempty"`
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
	return s + ")"
}

// A Lane is what a key must know of where a model runs.
type Lane struct {
	InstanceType InstanceType
	Provider     string
	// Emulated is set where the agent plays an instance of its type, whatever it runs on itself.
	Emulated bool
	// Lanes is how many such lanes the machine has, Cores how many cores each has.
	Lanes, Cores int
}

// KeyOf returns the key of the profile of a version of a model on a lane. It is the one place that
// makes a key, for whoever learns and whoever looks up must agree on it: the one lane of a machine
// of a type that the catalogue knows counts as the whole machine (Cores 0), as the shipped profiles
// do, if it has all CPUs, or a GPU, or only plays it; an emulated lane has its type's provider.
func KeyOf(c *Catalogue, model string, version int64, checksum string, on Lane) Key {
	k := Key{
		Model: model, Version: version, Checksum: checksum,
		InstanceType: on.InstanceType, Provider: on.Provider, Cores: on.Cores,
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

// unsummed is the key without the checksum.
func (k Key) unsummed() Key {
	k.Checksum = ""
	return k
}

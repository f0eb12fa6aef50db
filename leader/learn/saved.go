package learn

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

// worksFormat is the version of the JSON form of what is learned of work. It is a file of its own:
// older agents refuse keys of the book's that they do not know.
const worksFormat = 1

// maxSavedWorks bounds the models of the file; those of the lowest names stay. Chosen: a fleet
// serves some dozen.
const maxSavedWorks = 256

type worksJSON struct {
	Format int             `json:"format"`
	Models []modelWorkJSON `json:"models"`
}

type modelWorkJSON struct {
	Model    string              `json:"model"`
	Version  int64               `json:"version"`
	PerUser  float64             `json:"rows_per_user"`
	PerValue float64             `json:"rows_per_value"`
	Profiles []*profiles.Learner `json:"profiles"` // by work
}

// MarshalWorks writes the laws that hold, and the profiles by them, so that a fleet of which all
// agents restart goes on with them. It returns nil if there is none.
func (s *State) MarshalWorks() ([]byte, error) {
	j := worksJSON{Format: worksFormat}
	for id, w := range s.works {
		if w.law == (work.Law{}) {
			continue
		}
		m := modelWorkJSON{
			Model: id.Name, Version: id.Version, PerUser: w.law.PerUser, PerValue: w.law.PerValue,
		}
		for _, l := range w.learners {
			if l.Queries() > 0 || w.told[l.Key()] {
				m.Profiles = append(m.Profiles, l)
			}
		}
		slices.SortFunc(m.Profiles, func(a, b *profiles.Learner) int {
			return a.Key().Compare(b.Key())
		})
		j.Models = append(j.Models, m)
	}
	if len(j.Models) == 0 {
		return nil, nil
	}
	slices.SortFunc(j.Models, func(a, b modelWorkJSON) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Version, b.Version))
	})
	j.Models = j.Models[:min(len(j.Models), maxSavedWorks)]
	return json.Marshal(j)
}

// RestoreWorks has learning start from what MarshalWorks wrote, for models of which no former leader
// has told a law. It must be called after Suggest and before the first Look. After an error, nothing
// is restored.
func (s *State) RestoreWorks(data []byte) error {
	var j worksJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	if j.Format != worksFormat {
		return fmt.Errorf("format is %d, want %d", j.Format, worksFormat)
	}
	if n := len(j.Models); n > maxSavedWorks {
		return fmt.Errorf("%d models, want at most %d", n, maxSavedWorks)
	}
	for _, m := range j.Models {
		law := work.NewLaw(m.PerUser, m.PerValue)
		if law == (work.Law{}) {
			return fmt.Errorf("model %q: %v rows a user and %v a value, want numbers from 0 of which "+
				"one is above", m.Model, m.PerUser, m.PerValue)
		}
		if slices.Contains(m.Profiles, nil) {
			return errors.New("a profile is null")
		}
	}
	for _, m := range j.Models {
		id := leader.ModelID{Name: m.Model, Version: m.Version}
		if s.works[id] != nil {
			continue
		}
		w := newModelWork(work.NewLaw(m.PerUser, m.PerValue))
		for _, l := range m.Profiles {
			w.learners[l.Key()], w.told[l.Key()] = l, true
		}
		s.works[id] = w
	}
	return nil
}

package families

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/models"
)

// readVersions reads the models, and those of the families, that e names, each once.
func (e *evaluation) readVersions() ([]*models.Version, error) {
	var list []*models.Version
	for _, name := range e.names {
		v, err := models.ReadNewest(e.dir, name)
		var more []*models.Version
		switch {
		case err == nil:
			more = append(more, v)
		case !errors.Is(err, models.ErrNotFound):
			return nil, err
		default:
			all, readErr := models.ReadAll(e.dir)
			if readErr != nil {
				return nil, readErr
			}
			for _, v := range all {
				if v.Config.Family == name {
					more = append(more, v)
				}
			}
			if len(more) == 0 {
				return nil, fmt.Errorf("no model and no family in %s has the name %q", e.dir, name)
			}
		}
		for _, v := range more {
			if !slices.ContainsFunc(list,
				func(o *models.Version) bool { return o.Model == v.Model }) {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

// withTeacher puts the model first that the others are variants of.
func (e *evaluation) withTeacher(list []*models.Version) ([]*models.Version, error) {
	of := func(v *models.Version) string {
		if g := v.Config.Generated; g != nil && g.From != "" {
			return g.From
		}
		return v.Model
	}
	name := of(list[0])
	for _, v := range list {
		switch {
		case of(v) != name:
			return nil, fmt.Errorf(
				"%s is no variant of %s: measure them against a FILE of labelled "+
					"rows", v.Model, name)
		case v.Config.Generated == nil && v.Config.Family != "" && len(list) == 1:
			all, err := models.ReadAll(e.dir)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(all, func(o *models.Version) bool {
				return o.Model != v.Model && of(o) == v.Model
			}) {
				return nil, fmt.Errorf(
					"it is not known of which model of family %q %s is a variant: "+
						"measure it against a FILE of labelled rows", v.Config.Family, v.Model)
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(v *models.Version) bool {
		return v.Model == name
	})
	v, err := models.ReadNewest(e.dir, name)
	if err != nil {
		return nil, fmt.Errorf("the model of which %s is a variant: %w", list[0].Model, err)
	}
	return append([]*models.Version{v}, rest...), nil
}

// checkSameRows checks that the models take the same rows. models.Families checks that of the
// models of a family, with their configurations, so all get a family and the same configuration.
func checkSameRows(list []*models.Version) error {
	var alike []*models.Version
	for _, v := range list {
		c := *v
		c.Config = models.DefaultConfig()
		c.Config.Family = "\x00" // no model's name
		alike = append(alike, &c)
	}
	_, apart := models.Families(alike)
	for name, why := range apart {
		_, why, _ = strings.Cut(why, ": ")
		return fmt.Errorf("%s cannot be measured beside the others: %s", name, why)
	}
	return nil
}

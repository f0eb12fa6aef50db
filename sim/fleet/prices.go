package fleet

import (
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// Versioned returns prices whose models have the versions that leaders of simulations know.
func Versioned(prices []match.Price) []match.Price {
	return renamePrices(prices, func(model names.ModelKey) names.ModelKey {
		return names.NewModelKey(string(model), 1)
	})
}

// withoutVersions returns prices whose models have no versions, as gateways of simulations know
// them.
func withoutVersions(prices []match.Price) []match.Price {
	return renamePrices(prices, func(model names.ModelKey) names.ModelKey {
		name, _ := model.Split()
		return names.ModelKey(name)
	})
}

// renamePrices returns a copy of prices with other names of the models that tell classes apart.
func renamePrices(prices []match.Price, name func(names.ModelKey) names.ModelKey) []match.Price {
	all := slices.Clone(prices)
	for i := range all {
		all[i].Classes = slices.Clone(all[i].Classes)
		for k := range all[i].Classes {
			c := &all[i].Classes[k]
			c.Models = slices.Clone(c.Models)
			for j, model := range c.Models {
				c.Models[j] = name(model)
			}
		}
	}
	return all
}

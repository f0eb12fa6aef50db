package serve

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/openapi"
)

// TestOpenAPI: the document describes every path that an agent answers, and no other.
func TestOpenAPI(t *testing.T) {
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openapi.Document, &document); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for path, item := range document.Paths {
		for method := range item {
			if method != "parameters" {
				described[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	served := map[string]bool{}
	for _, route := range (&rest{}).listRoutes() {
		served[strings.ReplaceAll(route.pattern, "{$}", "")] = true
	}
	if !maps.Equal(described, served) {
		t.Errorf("described %q,\nserved %q", slices.Sorted(maps.Keys(described)),
			slices.Sorted(maps.Keys(served)))
	}
}

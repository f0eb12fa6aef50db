// Package openapi holds the OpenAPI document of an agent's REST interface.
package openapi

import _ "embed"

// Document is the interface's description as JSON, in OpenAPI 3.0.3, which more generators of
// clients read than 3.1. Nobody may change it.
//
//go:embed openapi.json
var Document []byte

// Package provider is what an agent that rents asks of a provider in a process of its own. It is
// generated from provider.proto; cloud/plugin is both its ends.
package provider

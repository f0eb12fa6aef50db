// Package tracing is what client, gateway, leader and worker must agree on so that their spans make
// one OpenTelemetry trace of a query: the names of spans and attributes, and how the context of a
// span travels. It makes no spans and knows no exporters.
package tracing

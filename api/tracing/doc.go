// Package tracing is shared by client, gateway, leader and worker, so that their spans form one
// OpenTelemetry trace of a query: the names of spans and attributes, and the headers that carry a
// span's context. It makes no spans and knows no exporters.
package tracing

// Package extproc has the messages by which Envoy and other gateways ask an external processor, such
// as an endpoint picker, about each request: the part of Envoy's External Processing that Muster
// needs, generated from extproc.proto.
package extproc

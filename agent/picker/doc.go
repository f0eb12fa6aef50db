// Package picker lets an HTTP gateway such as Envoy have the fleet's leader choose the agent of each
// request. It implements the endpoint picker protocol of the Gateway API's Inference Extension, over
// Envoy's External Processing: the gateway tells of a request on a stream, and the [Picker] answers
// with the address of the agent that is to run it.
//
// To the leader the picker is a gateway of the fleet whose attempts somebody else makes: it submits
// the query, and is assigned a lane. A [Ticket], which the gateway passes on as a header, tells the
// agent assigned which attempt the request is. It is signed, names that agent, and is good for one
// request and a short time; in any other case the agent treats the request as one without a ticket,
// and matches it itself.
package picker

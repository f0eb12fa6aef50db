// Package lines is the text form of events and decisions: one line each, with its kind and then
// key=value fields. A field is absent if its value is the zero of its type. The package does not
// know the events; packages match and leader define what their lines hold.
package lines

// Package charts draws what simulations say as bars: policies compared, and plans with their bounds
// and prices.
package charts

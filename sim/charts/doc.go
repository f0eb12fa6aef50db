// Package charts draws what simulations say: policies compared as bars, plans with their bounds and
// prices, and days as curves.
package charts

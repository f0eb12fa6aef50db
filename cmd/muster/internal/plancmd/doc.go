// Package plancmd is behind `muster plan`: a planning problem with its evaluators (Problem), a
// fleet that runs beside the plan for it (ReadFleet, Fleet), and the report for people and as JSON
// (NewReport, Report). package main reads the flags, and opens simulations and tables.
package plancmd

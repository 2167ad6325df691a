// Package schedule gives the CTAs of a persistent kernel their tiles.
package schedule

// Package dashboard serves a page that shows the fleet, at any agent, and the data that it reads.
//
// Input: HTTP requests under /dashboard/, which the guard has admitted. Output: the embedded files
// of the folder web, which read nothing but what this package serves.
package dashboard

"""Support for all rooms that knows none of them: errors that cross the border, forks, lazy and old names."""

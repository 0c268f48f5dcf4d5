"""What a user can look at: frames, pictures, the outlook on a schedule, suspicious labels."""

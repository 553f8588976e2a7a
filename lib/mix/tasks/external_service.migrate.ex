defmodule Mix.Tasks.ExternalService.Migrate do
  @shortdoc "Shows what code for version 1 of ExternalService writes today"

  @moduledoc """
  Shows what code for version 1 of ExternalService has to write differently today.

      $ mix external_service.migrate lib test
      lib/my_app/mail.ex:7: fuse_strategy: {:standard, 5, 10_000}, fuse_refresh: 5_000
        circuit_breaker: [tolerate: 5, within: 10_000, reset: 5_000]

  Each argument is a file, or a folder whose `.ex` and `.exs` files are read; those of `deps` and `_build` in it are not.
  Each place is printed with its file and line, what stands there, and below it what to write instead. Words like
  `failures` and `ms` in it stand for values that can not be read off the code. No file is changed.

  The exit status is 0 if there is nothing to change, 1 if there is, and 2 if a file could not be read.

  Looked for are the options of `start` and of `use ExternalService.Gateway`, those of `ExternalService.RetryOptions`, the
  functions of a gateway, the error tuples and the exceptions.
  """

  use Mix.Task

  alias ExternalService.Migration

  @impl true
  def run([]), do: Mix.raise("Give the files or folders to look at: mix external_service.migrate PATH ...")

  def run(paths) do
    results = for path <- paths, file <- files(path), do: show(file, Migration.places(File.read!(file)))
    {places, unreadable} = Enum.reduce(results, {0, 0}, fn {p, u}, {places, files} -> {places + p, files + u} end)
    unless places == 0 and unreadable > 0, do: summary(places)

    cond do
      unreadable > 0 -> exit({:shutdown, 2})
      places > 0 -> exit({:shutdown, 1})
      true -> :ok
    end
  end

  defp files(path) do
    cond do
      File.dir?(path) -> path |> Path.join("**/*.{ex,exs}") |> Path.wildcard() |> Enum.reject(&foreign?(&1, path))
      File.regular?(path) -> [path]
      true -> Mix.raise("There is no file or folder #{path}")
    end
  end

  defp foreign?(file, path),
    do: file |> Path.relative_to(path) |> Path.split() |> Enum.any?(&(&1 in ["deps", "_build"]))

  defp show(file, {:ok, places}) do
    for %{line: line, found: found, today: today} <- places,
        do: Mix.shell().info("#{file}:#{line}: #{found}\n  #{today}")

    {length(places), 0}
  end

  defp show(file, {:error, why}) do
    Mix.shell().error("#{file} could not be read: #{why}")
    {0, 1}
  end

  defp summary(0), do: Mix.shell().info("There is nothing to change.")

  defp summary(places) do
    Mix.shell().info("""

    #{if places == 1, do: "1 place", else: "#{places} places"} to change. What no spelling shows: a call makes at most \
    5 attempts unless `retry: [max_attempts: ...]` says otherwise, and exceptions are retried only if `retry_exceptions` \
    lists them (version 1 retried RuntimeError).\
    """)
  end
end

defmodule Demo.Pace do
  @moduledoc """
  How fast the demo runs: 11 seconds, or as many as the environment variable `DEMO_SECONDS` says.
  """

  @usual_ms 11_000

  @doc "What `ms` milliseconds of the usual demo are in this one."
  def ms(ms), do: max(1, round(ms * total_ms() / @usual_ms))

  defp total_ms do
    case Integer.parse(System.get_env("DEMO_SECONDS", "")) do
      {seconds, ""} when seconds > 0 -> seconds * 1_000
      _not_given -> @usual_ms
    end
  end
end

defmodule DnsCache.Dig do
  @moduledoc """
  Asks a DNS server on the loopback interface with `dig`, as anybody would.
  """

  @options ~w(@127.0.0.1 +tries=1 +time=8 +noall +answer +comments +stats)

  @doc "Returns the status, and TTL and data of the answer's records; or `:no_answer`."
  def ask(port, name, type \\ "A") do
    case System.cmd("dig", @options ++ ["-p", "#{port}", "-q", name, "-t", type], stderr_to_stdout: true) do
      {output, 0} -> %{status: status(output), records: records(output), ms: ms(output)}
      {_output, _status} -> :no_answer
    end
  end

  defp status(output), do: match(~r/status: (\w+)/, output)

  defp ms(output), do: ~r/Query time: (\d+) msec/ |> match(output) |> String.to_integer()

  defp records(output) do
    for [_line, ttl, data] <- Regex.scan(~r/^[^;\s]\S*\s+(\d+)\s+IN\s+\w+\s+(.+)$/m, output),
        do: {String.to_integer(ttl), data}
  end

  defp match(pattern, output) do
    [_whole, found] = Regex.run(pattern, output)
    found
  end
end

defmodule ExternalService.RetryAfter do
  @moduledoc """
  Reads the `Retry-After` header of an HTTP response (RFC 9110, section 10.2.3).

      iex> ExternalService.RetryAfter.parse("120")
      {:ok, 120_000}

  A function that gets such a response says so with `{:retry_after, ms, reason}`, and the next attempt waits for as long as
  the server asked, instead of the backoff's delay:

      case MyApp.Client.get(url) do
        {:ok, %{status: 429} = response} ->
          case ExternalService.RetryAfter.parse(MyApp.Client.header(response, "retry-after")) do
            {:ok, ms} -> {:retry_after, ms, :throttled}
            :error -> {:retry, :throttled}
          end

        other ->
          other
      end

  The wait is never longer than `:retry_after_max` of `ExternalService.RetryOptions`; one that would pass the call's deadline
  ends the call.
  """

  alias ExternalService.Unit

  @months ~w(Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec)

  # The three forms of a date that RFC 9110, section 5.6.7, wants to be understood: today's, RFC 850's and asctime's.
  @clock "(?<hour>\\d\\d):(?<minute>\\d\\d):(?<second>\\d\\d)"
  @month "(?<month>#{Enum.join(@months, "|")})"
  @forms [
    "^(Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?<day>\\d\\d) #{@month} (?<year>\\d{4}) #{@clock} GMT\\z",
    "^(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, (?<day>\\d\\d)-#{@month}-(?<year>\\d\\d) #{@clock} GMT\\z",
    "^(Mon|Tue|Wed|Thu|Fri|Sat|Sun) #{@month} (?<day>[\\d ]\\d) #{@clock} (?<year>\\d{4})\\z"
  ]

  @doc """
  Returns the milliseconds to wait from `now` on: of a number of seconds, or until an HTTP date, 0 if that is past.

  Anything else is `:error`.

      iex> now = ~U[2024-02-29 12:00:00Z]
      iex> ExternalService.RetryAfter.parse("Thu, 29 Feb 2024 12:00:30 GMT", now)
      {:ok, 30_000}
      iex> ExternalService.RetryAfter.parse("Thu, 29 Feb 2024 11:00:00 GMT", now)
      {:ok, 0}
      iex> ExternalService.RetryAfter.parse("in a while", now)
      :error
  """
  @spec parse(term(), DateTime.t()) :: {:ok, non_neg_integer()} | :error
  def parse(header, now \\ DateTime.utc_now())

  def parse(header, %DateTime{} = now) when is_binary(header) do
    text = String.trim(header, " ")

    with :error <- seconds(text), {:ok, date} <- date(text, now) do
      {:ok, max(DateTime.diff(date, now, :millisecond), 0)}
    end
  end

  def parse(_header, %DateTime{}), do: :error

  defp seconds(text) do
    with {:ok, seconds} <- Unit.parse(text), do: {:ok, seconds * 1_000}
  end

  # Longer ones are no dates, and are not searched.
  defp date(text, now) when byte_size(text) < 64 do
    with fields when fields != nil <- Enum.find_value(@forms, &Regex.named_captures(Regex.compile!(&1), text)),
         {:ok, date} <- Date.new(year(fields["year"], now), month(fields["month"]), number(fields["day"])),
         {:ok, time} <- Time.new(number(fields["hour"]), number(fields["minute"]), second(fields["second"])) do
      DateTime.new(date, time)
    else
      _no_date -> :error
    end
  end

  defp date(_text, _now), do: :error

  defp month(name), do: Enum.find_index(@months, &(&1 == name)) + 1

  # A leap second, which `Time` does not have.
  defp second("60"), do: 59
  defp second(digits), do: number(digits)

  # Of two digits: the year within fifty of now.
  defp year(<<_, _>> = digits, now) do
    year = now.year - rem(now.year, 100) + number(digits)
    if year > now.year + 50, do: year - 100, else: year
  end

  defp year(digits, _now), do: number(digits)

  defp number(digits), do: digits |> String.trim() |> String.to_integer()
end

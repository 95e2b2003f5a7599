# losses.py
def mine(pairs, similarity, *, temperature: float = 0.5):
    scores = similarity / temperature  # (N, M); pairs.positive and pairs.negative are masks of it
    count = pairs.positive.sum(1)
    positive = (scores * pairs.positive).sum(1) / count.clamp(min=1)
    loss = scores.masked_fill(~pairs.negative, float("-inf")).logsumexp(1) - positive
    return loss.where(count > 0, 0.0)  # (N,); an anchor without a positive has loss 0
